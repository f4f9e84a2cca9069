//! The pattern of every owner of state: a pure state machine, and the edge where its shell meets the world.
//!
//! A [`Machine`] decides. It does no I/O and has no clock of its own, so that the simulator runs the same code. An [`Edge`] tells the
//! [`shell`](super::shell) what the effects of one kind of machine mean.

use std::task::{Context, Poll};
use std::time::Duration;

use whimbrel_model::{Clock, Timestamp};

use super::shell::{Calls, MachineCall};

/// A pure state machine. It takes the time and an input, and returns effects. Results of effects come back as inputs.
pub trait Machine {
    /// A reading of the clocks.
    type Now;
    /// A request, the result of an effect, or a tick.
    type Input;
    /// An action that the machine requests from its shell.
    type Effect;

    fn step(&mut self, now: Self::Now, input: Self::Input) -> Vec<Self::Effect>;

    /// When the machine needs a tick if no other input arrives.
    fn wake_at(&self) -> Option<Timestamp>;
}

/// How a machine starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineStart {
    /// Under a new fence, and after a check of the ownership. The first start is one of these.
    Fenced,
    /// Under the fence that is open.
    Again,
}

/// The outcome of an effect.
#[derive(Debug)]
pub enum Performed<Input> {
    /// The effect is complete, or its call is in progress.
    Done,
    /// An input that the machine takes before all others.
    Input(Input),
    /// The machine starts over: all calls in progress are dropped, except a write.
    StartOver(MachineStart),
    /// The owner cannot continue, for this reason.
    Resign(String),
}

/// The edge of a machine: its requests, the calls that its effects become, its start and its ending.
pub trait Edge: Send {
    type Machine: Machine<Now: Send, Input: Send, Effect: Send> + Send;
    type Request: Send;
    /// The state that a start found.
    type Started: Send;
    /// The result of a call.
    type Done: Send;

    /// The longest time between two steps.
    const STEP_EVERY: Duration;
    /// Whether the machine takes requests and ticks while it starts. Otherwise requests wait.
    const ANSWERS_WHILE_STARTING: bool;

    fn clock(&self) -> &dyn Clock;
    fn now(&self) -> <Self::Machine as Machine>::Now;
    /// The machine's time as of its last step. [`Machine::wake_at`] refers to it.
    fn time_of(machine: &Self::Machine) -> Timestamp;
    fn tick() -> <Self::Machine as Machine>::Input;

    /// Finds the state from which the machine starts. An error ends the owner. Until [`Edge::started`], effects other than answers have no
    /// effect.
    fn start(&mut self, start: MachineStart) -> MachineCall<Result<Self::Started, String>>;
    /// The inputs with which the machine starts.
    fn started(&mut self, started: Self::Started, calls: &mut Calls<Self::Done>) -> Vec<InputOf<Self>>;

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Option<Self::Request>>;
    /// A request that is waiting already.
    fn try_request(&mut self) -> Option<Self::Request>;
    /// Takes a request. `None`: it has no input, or it has one later.
    fn request(&mut self, request: Self::Request, calls: &mut Calls<Self::Done>) -> Option<InputOf<Self>>;

    fn perform(
        &mut self,
        machine: &Self::Machine,
        effect: <Self::Machine as Machine>::Effect,
        calls: &mut Calls<Self::Done>,
    ) -> Performed<InputOf<Self>>;
    /// Takes the result of a call. `None`: it has no input.
    fn finished(&mut self, done: Self::Done, calls: &mut Calls<Self::Done>) -> Option<InputOf<Self>>;
    /// Called after each turn: metrics, and what is due by the edge's own intervals.
    fn turned(&mut self, machine: &mut Self::Machine, calls: &mut Calls<Self::Done>) -> Option<InputOf<Self>>;

    /// Begins the ending: no request is taken any more. `can_save`: the owner was stopped in order, and its machine has started.
    fn ending(&mut self, can_save: bool) -> Option<InputOf<Self>>;
    /// Whether the ending waits for calls of the machine.
    fn awaits_calls(&self, machine: &Self::Machine) -> bool;
    /// Called when the ending waits for no more calls: all of them ended, or `in_time` is false.
    fn settled(&mut self, machine: &Self::Machine, in_time: bool);
    /// The last write, which shortens the next owner's start. Only if the owner can save; no other write is in progress.
    fn last_write(&mut self, machine: &mut Self::Machine) -> Option<MachineCall<()>>;
    /// Answers all requests that are left.
    fn ended(&mut self, machine: &mut Self::Machine);
}

/// The inputs of an edge's machine.
pub type InputOf<E> = <<E as Edge>::Machine as Machine>::Input;
