//! The shell with a machine that only counts: results of calls while requests keep arriving, and the order of calls.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use whimbrel_model::{Clock, SystemClock, Timestamp};

use super::{Calls, MachineCall, run};
use crate::Machine;
use crate::machine::{Edge, InputOf, MachineStart, Performed};

/// More results than tokio lets a task take without a yield.
const RESULTS: u32 = 1_000;
/// Requests without a result between them, after which the test gives up.
const REQUESTS_MAX: u32 = 100_000;

struct Counter;

impl Machine for Counter {
    type Now = ();
    type Input = ();
    type Effect = ();

    fn step(&mut self, (): (), (): ()) -> Vec<()> {
        Vec::new()
    }

    fn wake_at(&self) -> Option<Timestamp> {
        None
    }
}

/// An edge whose requests never run out, and whose calls are ready at once.
struct BusyEdge {
    stop: CancellationToken,
    results: u32,
    requests: u32,
    outcome: mpsc::UnboundedSender<(u32, u32)>,
}

fn ready_call() -> MachineCall<()> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    sender.send(()).expect("the receiver exists");
    Box::pin(async move { receiver.recv().await.expect("a result was sent") })
}

impl Edge for BusyEdge {
    type Machine = Counter;
    type Request = ();
    type Started = ();
    type Done = ();

    const STEP_EVERY: Duration = Duration::from_secs(1);
    const ANSWERS_WHILE_STARTING: bool = false;

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn now(&self) {}

    fn time_of(_: &Counter) -> Timestamp {
        Timestamp::from_millis(0)
    }

    fn tick() {}

    fn start(&mut self, _: MachineStart) -> MachineCall<Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn started(&mut self, (): (), calls: &mut Calls<()>) -> Vec<InputOf<Self>> {
        calls.begin(ready_call());
        Vec::new()
    }

    fn poll_request(&mut self, _: &mut Context<'_>) -> Poll<Option<()>> {
        Poll::Ready(Some(()))
    }

    fn try_request(&mut self) -> Option<()> {
        self.requests += 1;
        if self.requests == REQUESTS_MAX {
            self.stop.cancel();
        }
        Some(())
    }

    fn request(&mut self, (): (), _: &mut Calls<()>) -> Option<InputOf<Self>> {
        Some(())
    }

    fn perform(&mut self, _: &Counter, (): (), _: &mut Calls<()>) -> Performed<InputOf<Self>> {
        Performed::Done
    }

    fn finished(&mut self, (): (), calls: &mut Calls<()>) -> Option<InputOf<Self>> {
        (self.results, self.requests) = (self.results + 1, 0);
        if self.results == RESULTS {
            self.stop.cancel();
        }
        calls.begin(ready_call());
        None
    }

    fn turned(&mut self, _: &mut Counter, _: &mut Calls<()>) -> Option<InputOf<Self>> {
        None
    }

    fn ending(&mut self, _: bool) -> Option<InputOf<Self>> {
        None
    }

    fn awaits_calls(&self, _: &Counter) -> bool {
        false
    }

    fn settled(&mut self, _: &Counter, _: bool) {}

    fn last_write(&mut self, _: &mut Counter) -> Option<MachineCall<()>> {
        None
    }

    fn ended(&mut self, _: &mut Counter) {
        self.outcome.send((self.results, self.requests)).expect("the test waits");
    }
}

#[tokio::test]
async fn results_of_calls_arrive_while_requests_never_run_out() {
    let (stop, (outcome, mut ended)) = (CancellationToken::new(), mpsc::unbounded_channel());
    let edge = BusyEdge { stop: stop.clone(), results: 0, requests: 0, outcome };
    assert_eq!(tokio::spawn(run(edge, Counter, stop)).await.unwrap(), None);
    let (results, requests) = ended.recv().await.unwrap();
    assert_eq!(results, RESULTS, "{requests} requests in a row without a result");
}

#[tokio::test]
async fn a_write_is_not_delayed_by_other_calls() {
    let mut calls = Calls::default();
    calls.begin(Box::pin(std::future::ready("call")) as MachineCall<_>);
    calls.begin_write(Box::pin(std::future::ready("write")));
    assert_eq!([calls.next().await, calls.next().await], ["write", "call"]);
}
