//! The possible states of one hold, given all commands about it and all answers.
//!
//! A hold has a set of possible states. The model tries concurrent answered commands in every order, with all possible events between
//! them: a fire after the due time, and unanswered commands, which may take effect at any later moment or never. An answer that fits no
//! possible state is false; so is a topic that fits none at the end. No I/O.

use std::fmt::Write as _;

/// Maximum distance of an unknown due time from the requested one: the server adds the delay to the time at which it reads the request.
const UNTOLD_DUE_SLACK_MS: i64 = 120_000;

/// A time in milliseconds since 1970, known to be within these bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub low: i64,
    pub high: i64,
}

impl Span {
    pub fn exactly(time: i64) -> Self {
        Self { low: time, high: time }
    }

    fn by(self, ms: i64) -> Self {
        Self { low: self.low + ms, high: self.high + ms }
    }

    fn with(self, time: i64) -> Option<Self> {
        (self.low <= time && time <= self.high).then_some(Self::exactly(time))
    }
}

/// An extend under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedMove {
    key: u64,
    due: Span,
    version: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldState {
    Absent,
    Pending { due: Span, version: Option<u64>, moves: Vec<KeyedMove> },
    Fired { due: Span, at: Option<i64>, by_command: bool },
    Withdrawn,
}

/// A possible state, and the unanswered commands that are part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Possible {
    state: HoldState,
    seen: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A repeat finds the existing hold.
    Publish {
        due: Span,
    },
    Extend {
        to: NewDue,
        if_version: Option<u64>,
        key: Option<u64>,
    },
    Withdraw,
    Fire,
    Look,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewDue {
    By(i64),
    Until(i64),
}

/// The part of an answer that concerns the hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Held {
        due: i64,
    },
    Rescheduled {
        due: i64,
        version: u64,
    },
    Withdrawn,
    /// The command fired the hold.
    Fired {
        at: Option<i64>,
    },
    Pending {
        due: i64,
        version: u64,
    },
    /// The hold had fired before; a query also returns its due time.
    AlreadyFired {
        at: i64,
        due: Option<i64>,
    },
    AlreadyWithdrawn,
    OtherVersion,
    Unknown,
}

/// The hold's message in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub due: i64,
    pub fired_at: i64,
}

#[derive(Debug, Clone)]
pub struct History {
    possible: Vec<Possible>,
    /// Commands without an answer.
    floating: Vec<Command>,
    /// The history in words, for a failure.
    told: Vec<String>,
}

impl Default for History {
    fn default() -> Self {
        let absent = Possible { state: HoldState::Absent, seen: 0 };
        Self { possible: vec![absent], floating: Vec::new(), told: Vec::new() }
    }
}

/// An answer, or a topic, that fits no possible state.
pub type Contradiction = String;

impl History {
    /// Applies commands that were sent concurrently and answered between two times of the client's clock. `None`: without an answer, the
    /// command may take effect at any later time.
    pub fn asked(&mut self, group: &[(Command, Option<Answer>)], from: i64, until: i64) -> Result<(), Contradiction> {
        self.told.push(format!("{from}..{until} {group:?}"));
        let mut answered = Vec::new();
        for (command, answer) in group {
            match (command, answer) {
                (_, Some(answer)) => answered.push((command, answer)),
                (Command::Look, None) => {}
                (Command::Publish { due }, None) => {
                    let due = Span {
                        high: if due.low == due.high { due.high } else { due.high + UNTOLD_DUE_SLACK_MS },
                        ..*due
                    };
                    self.floating.push(Command::Publish { due });
                }
                (command, None) => self.floating.push(command.clone()),
            }
        }
        let mut reached = Vec::new();
        for possible in &self.possible {
            self.explore(possible.clone(), &answered, until, &mut reached);
        }
        if reached.is_empty() {
            return Err(self.contradiction("no order of events explains the last answers"));
        }
        self.possible = reached;
        Ok(())
    }

    /// Checks the final topic against the possible states. The hold must not be pending.
    pub fn settled(&mut self, found: &[Found], now: i64) -> Result<(), Contradiction> {
        self.told.push(format!("{now} the topic has {found:?}"));
        if self.may_have(found, now) {
            return Ok(());
        }
        Err(self.contradiction("the topic does not have what must be there"))
    }

    /// Whether the topic may contain these messages of the hold, and no others.
    pub fn may_have(&self, found: &[Found], now: i64) -> bool {
        let mut reached = Vec::new();
        for possible in &self.possible {
            self.explore(possible.clone(), &[], now, &mut reached);
        }
        let agrees = |state: &HoldState| match (state, found) {
            (HoldState::Absent | HoldState::Withdrawn, []) => true,
            (HoldState::Fired { due, at, by_command }, [one]) => {
                due.with(one.due).is_some()
                    && at.is_none_or(|at| at == one.fired_at)
                    && (*by_command || one.fired_at >= one.due)
            }
            _ => false,
        };
        reached.iter().any(|possible| agrees(&possible.state))
    }

    /// The due time, if the hold is certainly pending and its due time is known.
    pub fn certainly_due(&self) -> Option<i64> {
        let mut dues = self.possible.iter().map(|possible| match &possible.state {
            HoldState::Pending { due, .. } if due.low == due.high && self.floating.is_empty() => Some(due.low),
            _ => None,
        });
        let first = dues.next()??;
        dues.all(|due| due == Some(first)).then_some(first)
    }

    /// Whether the hold may be pending according to the answers.
    pub fn may_be_pending(&self) -> bool {
        let pending = |possible: &Possible| matches!(possible.state, HoldState::Pending { .. });
        self.possible.iter().any(pending)
            || self.floating.iter().any(|command| matches!(command, Command::Publish { .. }))
    }

    /// The version, if only one is possible.
    pub fn version(&self) -> Option<u64> {
        match self.possible.as_slice() {
            [Possible { state: HoldState::Pending { version, .. }, .. }] => *version,
            _ => None,
        }
    }

    pub fn unanswered(&self) -> usize {
        self.floating.len()
    }

    fn contradiction(&self, what: &str) -> Contradiction {
        let mut text = format!("{what}\n  possible were {:?}\n  unanswered were {:?}\n", self.possible, self.floating);
        for line in &self.told {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// Adds every state that is possible after all answered commands, in any order, with all other possible events.
    fn explore(&self, at: Possible, answered: &[(&Command, &Answer)], until: i64, reached: &mut Vec<Possible>) {
        if answered.is_empty() && !reached.contains(&at) {
            reached.push(at.clone());
        }
        if let HoldState::Pending { due, .. } = &at.state
            && due.low <= until
        {
            let due = Span { low: due.low, high: due.high.min(until) };
            let state = HoldState::Fired { due, at: None, by_command: false };
            self.explore(Possible { state, seen: at.seen }, answered, until, reached);
        }
        for (number, command) in self.floating.iter().enumerate() {
            let bit = 1 << number;
            if at.seen & bit == 0 {
                for state in done(&at.state, command) {
                    self.explore(Possible { state, seen: at.seen | bit }, answered, until, reached);
                }
            }
        }
        for (index, (command, answer)) in answered.iter().enumerate() {
            if let Some(state) = done_with(&at.state, command, answer) {
                let mut rest = answered.to_vec();
                rest.remove(index);
                self.explore(Possible { state, seen: at.seen }, &rest, until, reached);
            }
        }
    }
}

/// The possible states after an unanswered command; empty if it would change nothing.
fn done(state: &HoldState, command: &Command) -> Vec<HoldState> {
    match (state, command) {
        (HoldState::Absent, Command::Publish { due }) => {
            vec![HoldState::Pending { due: *due, version: None, moves: Vec::new() }]
        }
        (HoldState::Pending { due, version, moves }, Command::Extend { to, if_version, key }) => {
            let is_repeat = key.is_some_and(|key| moves.iter().any(|each| each.key == key));
            let differs = matches!((if_version, version), (Some(wanted), Some(version)) if wanted != version);
            if is_repeat || differs {
                return Vec::new();
            }
            vec![moved(due, moves, *to, *key, None)]
        }
        (HoldState::Pending { .. }, Command::Withdraw) => vec![HoldState::Withdrawn],
        (HoldState::Pending { due, .. }, Command::Fire) => {
            vec![HoldState::Fired { due: *due, at: None, by_command: true }]
        }
        _ => Vec::new(),
    }
}

fn moved(due: &Span, moves: &[KeyedMove], to: NewDue, key: Option<u64>, told: Option<(i64, u64)>) -> HoldState {
    let asked = match to {
        NewDue::By(ms) => due.by(ms),
        NewDue::Until(time) => Span::exactly(time),
    };
    let due = told.map_or(asked, |(due, _)| Span::exactly(due));
    let version = told.map(|(_, version)| version);
    let mut moves = moves.to_vec();
    moves.extend(key.map(|key| KeyedMove { key, due, version }));
    HoldState::Pending { due, version, moves }
}

/// The state after a command with that answer; `None` if the answer would be false.
fn done_with(state: &HoldState, command: &Command, answer: &Answer) -> Option<HoldState> {
    match (state, command, answer) {
        (HoldState::Absent, Command::Publish { due: asked }, Answer::Held { due }) => {
            let due = asked.with(*due)?;
            Some(HoldState::Pending { due, version: None, moves: Vec::new() })
        }
        // A repeat: the client compares its answer with the first one.
        (_, Command::Publish { .. }, Answer::Held { .. }) => Some(state.clone()),
        (HoldState::Absent, _, Answer::Unknown) => Some(HoldState::Absent),
        (HoldState::Pending { due, version, moves }, _, _) => pending_with((due, *version, moves), command, answer),
        (HoldState::Fired { due, at, by_command }, _, Answer::AlreadyFired { at: told, due: due_told }) => {
            let due = match due_told {
                Some(told) => due.with(*told)?,
                None => *due,
            };
            let is_early = !by_command && *told < due.low;
            let is_another = at.is_some_and(|at| at != *told);
            let due = if *by_command { due } else { Span { low: due.low, high: due.high.min(*told) } };
            (!is_early && !is_another).then_some(HoldState::Fired { due, at: Some(*told), by_command: *by_command })
        }
        (HoldState::Withdrawn, _, Answer::AlreadyWithdrawn) => Some(HoldState::Withdrawn),
        _ => None,
    }
}

fn pending_with(
    (due, version, moves): (&Span, Option<u64>, &Vec<KeyedMove>),
    command: &Command,
    answer: &Answer,
) -> Option<HoldState> {
    match (command, answer) {
        (Command::Extend { to, if_version, key }, Answer::Rescheduled { due: due_told, version: version_told }) => {
            let earlier = key.and_then(|key| moves.iter().position(|each| each.key == key));
            if let Some(earlier) = earlier {
                return repeated(due, version, moves, earlier, *due_told, *version_told);
            }
            let differs = matches!((if_version, version), (Some(wanted), Some(version)) if *wanted != version);
            let goes_back = version.is_some_and(|version| *version_told <= version);
            let asked = match to {
                NewDue::By(ms) => due.by(*ms),
                NewDue::Until(time) => Span::exactly(*time),
            };
            asked.with(*due_told)?;
            (!differs && !goes_back).then(|| moved(due, moves, *to, *key, Some((*due_told, *version_told))))
        }
        (Command::Extend { if_version: Some(wanted), .. }, Answer::OtherVersion) if version != Some(*wanted) => {
            Some(HoldState::Pending { due: *due, version, moves: moves.clone() })
        }
        (Command::Withdraw, Answer::Withdrawn) => Some(HoldState::Withdrawn),
        (Command::Fire, Answer::Fired { at }) => Some(HoldState::Fired { due: *due, at: *at, by_command: true }),
        (Command::Look, Answer::Pending { due: due_told, version: version_told }) => {
            let due = due.with(*due_told)?;
            let differs = version.is_some_and(|version| version != *version_told);
            (!differs).then(|| HoldState::Pending { due, version: Some(*version_told), moves: moves.clone() })
        }
        _ => None,
    }
}

/// A repeat of an extend under a used key gets the first answer, and moves nothing.
fn repeated(
    due: &Span,
    version: Option<u64>,
    moves: &[KeyedMove],
    earlier: usize,
    due_told: i64,
    version_told: u64,
) -> Option<HoldState> {
    let mut moves = moves.to_vec();
    let first = &mut moves[earlier];
    first.due = first.due.with(due_told)?;
    if first.version.is_some_and(|version| version != version_told) {
        return None;
    }
    first.version = Some(version_told);
    Some(HoldState::Pending { due: *due, version, moves })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(due: i64) -> History {
        let mut history = History::default();
        let publish = Command::Publish { due: Span::exactly(due) };
        history.asked(&[(publish, Some(Answer::Held { due }))], 0, 1).unwrap();
        history
    }

    const FIRED: Answer = Answer::AlreadyFired { at: 150, due: None };

    #[test]
    fn an_acknowledged_hold_must_be_in_its_topic_once() {
        let found = Found { due: 100, fired_at: 101 };
        assert!(held(100).settled(&[found], 200).is_ok());
        assert!(held(100).settled(&[], 200).is_err());
        assert!(held(100).settled(&[found, found], 200).is_err());
    }

    #[test]
    fn an_early_fire_is_detected_by_every_check() {
        assert!(held(100).settled(&[Found { due: 100, fired_at: 99 }], 200).is_err());
        assert!(held(100).settled(&[Found { due: 100, fired_at: 101 }], 99).is_err());
        assert!(held(100).asked(&[(Command::Look, Some(Answer::AlreadyFired { at: 98, due: None }))], 90, 99).is_err());
    }

    #[test]
    fn an_answered_withdrawal_is_final() {
        let mut history = held(100);
        history.asked(&[(Command::Withdraw, Some(Answer::Withdrawn))], 10, 11).unwrap();
        assert!(history.clone().settled(&[Found { due: 100, fired_at: 101 }], 200).is_err());
        assert!(history.clone().asked(&[(Command::Look, Some(FIRED))], 150, 160).is_err());
        assert!(history.settled(&[], 200).is_ok());
    }

    #[test]
    fn an_unanswered_withdrawal_leaves_both_open_until_an_answer_decides() {
        let mut history = held(100);
        history.asked(&[(Command::Withdraw, None)], 10, 11).unwrap();
        let found = [Found { due: 100, fired_at: 150 }];
        assert!(history.clone().settled(&[], 200).is_ok() && history.clone().settled(&found, 200).is_ok());
        history.asked(&[(Command::Look, Some(FIRED))], 150, 160).unwrap();
        assert!(history.clone().settled(&[], 200).is_err() && history.settled(&found, 200).is_ok());
    }

    #[test]
    fn of_two_concurrent_withdrawals_exactly_one_succeeds() {
        let group = |one, other| [(Command::Withdraw, Some(one)), (Command::Withdraw, Some(other))];
        let (did, was_late) = (Answer::Withdrawn, Answer::AlreadyWithdrawn);
        assert!(held(100).asked(&group(did.clone(), was_late.clone()), 10, 11).is_ok());
        assert!(held(100).asked(&group(was_late.clone(), did.clone()), 10, 11).is_ok());
        assert!(held(100).asked(&group(did.clone(), did), 10, 11).is_err());
        assert!(held(100).asked(&group(was_late.clone(), was_late), 10, 11).is_err());
    }

    #[test]
    fn an_acknowledged_hold_is_never_unknown() {
        assert!(held(100).asked(&[(Command::Look, Some(Answer::Unknown))], 10, 11).is_err());
        assert!(History::default().asked(&[(Command::Look, Some(Answer::Unknown))], 10, 11).is_ok());
    }

    #[test]
    fn a_repeated_move_under_a_key_gets_the_first_answer() {
        let later = |due, version| {
            let command = Command::Extend { to: NewDue::By(50), if_version: None, key: Some(1) };
            [(command, Some(Answer::Rescheduled { due, version }))]
        };
        let mut history = held(100);
        history.asked(&later(150, 7), 10, 11).unwrap();
        assert!(history.clone().asked(&later(150, 7), 12, 13).is_ok());
        assert!(history.clone().asked(&later(200, 8), 12, 13).is_err());
        assert!(history.settled(&[Found { due: 100, fired_at: 160 }], 200).is_err());
    }

    #[test]
    fn a_message_at_the_due_time_from_before_a_move_is_false() {
        let mut history = held(100);
        let command = Command::Extend { to: NewDue::Until(180), if_version: None, key: None };
        history.asked(&[(command, Some(Answer::Rescheduled { due: 180, version: 7 }))], 10, 11).unwrap();
        assert!(history.clone().settled(&[Found { due: 100, fired_at: 101 }], 200).is_err());
        assert!(history.settled(&[Found { due: 180, fired_at: 180 }], 200).is_ok());
    }
}
