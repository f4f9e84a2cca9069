//! A scripted world of holds: a test chooses the steps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_holds::HoldsSettings;
use whimbrel_model::ports::{HoldReply, HoldRequest, HoldsError};
use whimbrel_model::{Headers, Hold, HoldId, IdMint, MessageBody, Timestamp, TopicNumber};
use whimbrel_sim::holds::node::{NodeCall, name_of, name_of_answer};
use whimbrel_sim::holds::world::{CommitFault, HoldsWorld};
use whimbrel_sim::trace::Trace;

/// The time for which a step of a wall clock must last before it is followed.
const STEPOUT: Duration = Duration::from_secs(60);
/// Limit of the steps of a script. A world with more is in a loop.
const STEPS_MAX: usize = 2_000;

pub struct Scene {
    pub world: HoldsWorld,
}

/// Settings under which nothing happens by itself.
pub fn quiet() -> HoldsSettings {
    let never = Duration::from_secs(1_000_000);
    HoldsSettings {
        window: Duration::from_secs(10),
        checkpoint_interval: never,
        trim_interval: never,
        answer_within: never,
        keep_log: Duration::from_millis(100),
        ..HoldsSettings::default()
    }
}

impl Scene {
    /// Makes node 0 the owner of an idle shard.
    pub fn new(settings: HoldsSettings) -> Self {
        let mut scene = Self { world: HoldsWorld::new(settings, STEPOUT, 2, Trace::new(false)) };
        scene.take(0);
        scene
    }

    pub fn now(&self) -> i64 {
        self.world.time
    }

    /// The node takes the shard over and settles.
    pub fn take(&mut self, node: usize) {
        self.world.take(node);
        self.run(node);
    }

    pub fn pass(&mut self, ms: i64) {
        self.world.pass(ms);
    }

    /// Lets time pass until the node notices it. None of its calls is executed.
    pub fn pass_and_tick(&mut self, node: usize, ms: i64) {
        self.pass(ms);
        self.tick(node);
    }

    /// Lets time pass, and runs the node.
    pub fn wait(&mut self, node: usize, ms: i64) {
        self.pass_and_tick(node, ms);
        self.run(node);
    }

    pub fn tick(&mut self, node: usize) {
        self.sound(|world| world.tick(node));
    }

    fn sound<T>(&mut self, step: impl FnOnce(&mut HoldsWorld) -> Result<T, String>) -> T {
        let done = step(&mut self.world);
        let done = done.unwrap_or_else(|wrong| panic!("{}\n{wrong}", self.world.trace.last().join("\n")));
        let rebuilt = self.world.truth.is_rebuilt_from(&self.world.store, &self.world.log);
        rebuilt.unwrap_or_else(|wrong| panic!("{}\n{wrong}", self.world.trace.last().join("\n")));
        done
    }

    /// Runs the node until it waits for time or for other nodes.
    pub fn run(&mut self, node: usize) {
        self.run_but(node, &[]);
    }

    /// The same, but calls of these names are not executed.
    pub fn run_but(&mut self, node: usize, held_back: &[&str]) {
        for _ in 0..STEPS_MAX {
            if self.world.is_starting(node) {
                self.sound(|world| world.start_on(node));
                continue;
            }
            if self.world.is_saving(node).is_some() && !held_back.contains(&"apply") {
                self.sound(|world| world.answer_saving(node, false));
                self.sound(|world| world.deliver_saving(node));
                continue;
            }
            let count = self.world.calls(node).len();
            let advanced = (0..count).any(|index| match &self.world.calls(node)[index] {
                NodeCall::Waiting(effect) if held_back.contains(&name_of(effect)) => false,
                NodeCall::Answered(input) if held_back.contains(&name_of_answer(input)) => false,
                NodeCall::Waiting(_) => self.sound(|world| world.answer_call(node, index, CommitFault::None, false)),
                NodeCall::Answered(_) => {
                    self.sound(|world| world.deliver(node, index));
                    true
                }
            });
            if !advanced {
                return;
            }
        }
        panic!("{}\nnode {node} does not settle", self.world.trace.last().join("\n"));
    }

    /// Ends the checkpoint in progress, and nothing else.
    pub fn run_one_save(&mut self, node: usize) {
        assert!(self.world.is_saving(node).is_some(), "no checkpoint is in progress");
        self.sound(|world| world.answer_saving(node, false));
        self.sound(|world| world.deliver_saving(node));
    }

    /// Whether the node waits for a call of this name.
    pub fn waits_for(&self, node: usize, name: &str) -> bool {
        let is = |call: &NodeCall| matches!(call, NodeCall::Waiting(effect) if name_of(effect) == name);
        self.world.calls(node).iter().any(is)
    }

    /// Answers the node's call of this name, with this fault.
    pub fn answer(&mut self, node: usize, name: &str, fault: CommitFault) {
        let is = |call: &NodeCall| matches!(call, NodeCall::Waiting(effect) if name_of(effect) == name);
        let index = self.world.calls(node).iter().position(is).unwrap_or_else(|| panic!("no call {name}"));
        self.sound(|world| world.answer_call(node, index, fault, false));
    }

    /// The same, for a read that finds nothing although there are records.
    pub fn answer_with_nothing(&mut self, node: usize, name: &str) {
        let is = |call: &NodeCall| matches!(call, NodeCall::Waiting(effect) if name_of(effect) == name);
        let index = self.world.calls(node).iter().position(is).unwrap_or_else(|| panic!("no call {name}"));
        self.sound(|world| world.answer_call(node, index, CommitFault::None, true));
    }

    /// Delivers the answer of this name.
    pub fn deliver(&mut self, node: usize, name: &str) {
        let is = |call: &NodeCall| matches!(call, NodeCall::Answered(input) if name_of_answer(input) == name);
        let index = self.world.calls(node).iter().position(is).unwrap_or_else(|| panic!("no answer {name}"));
        self.sound(|world| world.deliver(node, index));
    }

    pub fn append(&mut self, hold: &Hold) {
        self.sound(|world| world.append(hold));
    }

    /// Accepts the hold and lets node 0 fold it.
    pub fn accepted(&mut self, hold: &Hold) {
        self.append(hold);
        self.run(0);
    }

    /// A hold that node 0 has accepted.
    pub fn accepted_hold(&mut self, id: &str, due_in_ms: i64) -> Hold {
        let hold = self.hold(id, due_in_ms);
        self.accepted(&hold);
        hold
    }

    /// The same with a minted id.
    pub fn accepted_minted(&mut self, due_in_ms: i64) -> Hold {
        let hold = self.minted(due_in_ms);
        self.accepted(&hold);
        hold
    }

    pub fn ask(&mut self, node: usize, ask: HoldRequest) -> usize {
        self.sound(|world| world.ask(node, ask))
    }

    /// Sends a request to node 0 and waits for the answer.
    pub fn reply(&mut self, ask: HoldRequest) -> HoldReply {
        let question = self.ask(0, ask);
        self.run(0);
        match self.answer_to(question) {
            Some(Ok(reply)) => reply,
            other => panic!("{}\n{other:?}", self.world.trace.last().join("\n")),
        }
    }

    pub fn answer_to(&self, question: usize) -> Option<Result<HoldReply, HoldsError>> {
        self.world.questions[question].reply.clone()
    }

    /// Brings the store up to the fold of node 0: the node stops, and takes the shard again.
    pub fn checkpoint(&mut self) {
        self.sound(|world| world.stop(0));
        self.take(0);
    }

    /// The store falls back to its state at that offset.
    pub fn store_falls_back_to(&mut self, applied: u64) {
        let found = (0..self.world.store.past()).rev().find(|index| self.world.store.past_applied(*index) == applied);
        self.world.store.fall_back(found.expect("the store was at this offset"));
    }

    pub fn hold(&self, id: &str, due_in_ms: i64) -> Hold {
        let message = MessageBody { key: None, value: Bytes::from_static(b"body"), headers: Headers::EMPTY };
        Hold {
            id: HoldId::new(id),
            topic: TopicNumber(1),
            topic_name: "orders".into(),
            due: Timestamp::from_millis(self.now() + due_in_ms),
            published_at: Timestamp::from_millis(self.now()),
            version: 0,
            fresh: false,
            moves: Vec::new(),
            message,
        }
    }

    /// A hold with an id that is not used again.
    pub fn minted(&self, due_in_ms: i64) -> Hold {
        let id = IdMint::new(1, 0).mint_held(Timestamp::from_millis(self.now()), TopicNumber(1)).to_string();
        Hold { fresh: true, ..self.hold(&id, due_in_ms) }
    }
}

pub fn withdraw(hold: &Hold) -> HoldRequest {
    HoldRequest::Withdraw { id: hold.id.clone() }
}

pub fn accept(hold: &Hold) -> HoldRequest {
    HoldRequest::Accept(Arc::new(hold.clone()))
}
