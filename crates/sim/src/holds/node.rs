//! A node that owns the shard, or believes so: the real deciding part, with the calls that it waits for.
//!
//! What the shell around a shard does is done here step by step, so that anything can happen between two of them: a call is
//! first answered by the log or the store, and the answer reaches the shard later, or never.

use std::collections::BTreeMap;

use whimbrel_model::Timestamp;
use whimbrel_model::ports::{Applied, TimersError, Write};
use whimbrel_roles::center::holds::clock::Reading;
use whimbrel_roles::center::holds::shard::{AskId, Effect, Input, Shard};

/// A call on its way.
#[derive(Debug)]
pub enum Call {
    Waiting(Effect),
    Answered(Input),
}

/// A checkpoint on its way.
#[derive(Debug)]
pub enum Saving {
    Waiting(Write),
    Answered(Result<Applied, TimersError>),
}

/// Finding out where store and log are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Opens the fence.
    Fence,
    /// Checks the ownership.
    Check,
    /// Opens the store; the fence was opened in this start, or earlier.
    Store { anew: bool },
    /// Asks for the log's bounds.
    Bounds { applied: u64 },
}

#[derive(Debug)]
pub struct Owner {
    pub shard: Shard,
    pub epoch: u64,
    pub fence: u64,
    pub start: Option<Start>,
    pub calls: Vec<Call>,
    pub saving: Option<Saving>,
    /// Who asked: the number of the question.
    pub asks: BTreeMap<AskId, usize>,
    pub next_ask: AskId,
}

#[derive(Debug, Default)]
pub struct Node {
    /// There is none after a crash, and where the shard was given up.
    pub owner: Option<Owner>,
    /// How far its wall clock is from the true time.
    pub skew_ms: i64,
}

impl Node {
    pub fn reading(&self, time: i64) -> Reading {
        let wall = Timestamp::from_millis(time + self.skew_ms);
        Reading { wall, steady_ms: u64::try_from(time).unwrap_or(0) }
    }
}

/// A short name of what a call is for.
pub fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Read { .. } => "read",
        Effect::End { .. } => "end",
        Effect::Get { .. } => "get",
        Effect::Due { .. } => "due",
        Effect::List { .. } => "list",
        Effect::Dead { .. } => "dead",
        Effect::Count { .. } => "count",
        Effect::Apply(_) => "apply",
        Effect::Commit { .. } => "commit",
        Effect::Cut { .. } => "cut",
        Effect::Walk { .. } => "walk",
        Effect::Trim { .. } => "trim",
        Effect::Answer { .. } => "answer",
        Effect::StartOver => "start over",
        Effect::OpenAnew => "open anew",
        Effect::Report { .. } => "report",
        Effect::Resign { .. } => "resign",
    }
}

/// The same for an answer.
pub fn name_of_answer(input: &Input) -> &'static str {
    match input {
        Input::Started { .. } => "started",
        Input::Asked { .. } => "asked",
        Input::Read(_) => "read",
        Input::End { .. } => "end",
        Input::Got { .. } => "get",
        Input::Due { .. } => "due",
        Input::Listed { .. } => "list",
        Input::ListedDead { .. } => "dead",
        Input::Counted { .. } => "count",
        Input::Applied(_) => "apply",
        Input::Committed(_) => "commit",
        Input::Cut(_) => "cut",
        Input::Walked(_) => "walk",
        Input::Trimmed(_) => "trim",
        Input::Tick => "tick",
    }
}
