//! What a writer's shard knows of every gateway, and what is to be done about what it does not know.
//!
//! Pure: it is told packets, answers and the time, and says what to apply, whom to ask and who is void. It does no I/O, never waits, and
//! never tells the same packet twice, one before those that come before it, or anything of an incarnation that is void. So whoever applies
//! what it says, in order, has the gateway's own picture. It tells nothing of a gateway before the cluster was seen to know that one.
//!
//! Of each gateway it keeps the number up to which everything is complete, the highest number that was seen, what came after a gap (it
//! waits), and one open question: for the missing packets at first; for the whole picture where nothing is known yet, where too much is
//! missing, or where [`ASKS_MAX`] questions went unanswered.
//!
//! It also knows as of when all of that is true ([`Ledger::fresh_at`]), by the writer's clock alone: a gateway is known as of when the number
//! up to which everything is complete came for the first time, or as of when its picture was asked for. What came after a gap, came again,
//! or was brought by an answer to a question for packets does not make it any fresher: all of that may have happened long ago.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use whimbrel_model::people::{GatewayId, OnlineSession, Uid};

use super::limits::{ASKED_NUMBERS_MAX, ASKS_MAX, BUFFERED_NEWS_MAX, BUFFERED_PACKETS_MAX};
use super::packet::{Answer, News, Packet, Wanted};

/// When a ledger asks. All in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerTimes {
    /// A gap may be nothing but the slower path; it is asked about when it is that old.
    pub ask_after_ms: u64,
    /// After which an unanswered question is asked again.
    pub ask_again_ms: u64,
    /// The same for the whole picture, which takes longer.
    pub picture_again_ms: u64,
    /// How long a gateway that did not answer is left alone.
    pub rest_ms: u64,
    /// A gateway that is there and of which nothing new is known for so long is asked for its picture: what it said last may be lost.
    pub silent_after_ms: u64,
    /// One that reports and that the cluster does not know for so long is forgotten.
    pub unseen_after_ms: u64,
}

impl Default for LedgerTimes {
    fn default() -> Self {
        Self {
            ask_after_ms: 100,
            ask_again_ms: 300,
            picture_again_ms: 1_000,
            rest_ms: 2_000,
            silent_after_ms: 2_000,
            unseen_after_ms: 10_000,
        }
    }
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Todo {
    /// News of the packet with that number.
    Apply {
        gateway: GatewayId,
        number: u64,
        news: Vec<News>,
    },
    /// All sessions of that gateway are these.
    Replace {
        gateway: GatewayId,
        as_of: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    },
    Ask(Question),
    /// It and every earlier incarnation of its node.
    Void(GatewayId),
}

/// A question that is to be asked now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its answer says this again.
    pub ask: u64,
    pub gateway: GatewayId,
    pub address: Arc<str>,
    pub wanted: Wanted,
    /// From zero on: even ones go straight to the gateway, odd ones another way.
    pub attempt: u32,
}

/// What a ledger has seen, to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerCounts {
    /// Packets that had come before.
    pub repeated: u64,
    /// Packets of void incarnations.
    pub refused: u64,
    /// Packets that there was no room for.
    pub overflowed: u64,
    /// Gaps that had to be asked about.
    pub gaps: u64,
    pub asks: u64,
    pub pictures: u64,
    /// Questions that nobody answered, after all tries.
    pub unanswered: u64,
}

pub struct Ledger {
    times: LedgerTimes,
    /// By node: a node has one incarnation at a time.
    known: BTreeMap<u16, Known>,
    /// By node: this incarnation and all before it are void. At most as many as there are node numbers.
    voided: BTreeMap<u16, u64>,
    last_ask: u64,
    pub counts: LedgerCounts,
}

struct Known {
    id: GatewayId,
    address: Arc<str>,
    /// Everything up to this number was told to be applied.
    complete: u64,
    highest: u64,
    /// What came after a gap, by number.
    buffered: BTreeMap<u64, Waiting>,
    buffered_news: usize,
    /// The whole picture has come once; before, nothing is known for certain.
    is_drawn: bool,
    /// It is wanted, again or for the first time.
    wants_picture: bool,
    /// Since when something is missing.
    gap_since: Option<u64>,
    asking: Option<Asking>,
    rest_until: u64,
    /// As of when what was told is true; `None`: nothing says it yet.
    fresh_at: Option<u64>,
    first_heard_at: u64,
    /// Whether the cluster knew it.
    was_seen: bool,
}

/// A packet that waits for those before it.
struct Waiting {
    news: Vec<News>,
    /// When it came by itself. One that had to be asked for was made at any time before that.
    came_at: Option<u64>,
}

/// A question under way: what for, how often asked, and when again.
struct Asking {
    /// Of the first attempt; each further one has the next.
    ask: u64,
    wanted: Wanted,
    attempt: u32,
    asked_at: [u64; ASKS_MAX as usize],
    again_at: u64,
}

impl Ledger {
    /// A writer that just started: nothing is known.
    pub fn new(times: LedgerTimes) -> Self {
        Self { times, known: BTreeMap::new(), voided: BTreeMap::new(), last_ask: 0, counts: LedgerCounts::default() }
    }

    /// A packet came just now, on whichever path.
    pub fn packet(&mut self, packet: Packet, now_ms: u64) -> Vec<Todo> {
        let mut todo = Vec::new();
        let Some(known) = self.meet(packet.gateway, &packet.address, now_ms, &mut todo) else {
            self.counts.refused += 1;
            return todo;
        };
        let took = known.take(packet.number, Waiting { news: packet.news, came_at: Some(now_ms) });
        match took {
            Took::New => {}
            Took::Repeated => self.counts.repeated += 1,
            Took::NoRoom => self.counts.overflowed += 1,
        }
        self.go_on(packet.gateway.node, now_ms, &mut todo);
        todo
    }

    /// A gateway answered a question.
    pub fn answered(&mut self, ask: u64, of: GatewayId, answer: Answer, now_ms: u64) -> Vec<Todo> {
        let mut todo = Vec::new();
        let Some(known) = self.known.get_mut(&of.node).filter(|known| known.id == of) else { return todo };
        match answer {
            Answer::Packets(packets) => {
                for packet in packets.into_iter().filter(|packet| packet.gateway == of) {
                    known.take(packet.number, Waiting { news: packet.news, came_at: None });
                }
                if let Some(asking) = known.asking.take_if(|asking| asking.asked_at(ask).is_some()) {
                    // What it was asked for and did not bring will not come: the whole picture has it.
                    let is_short = matches!(&asking.wanted, Wanted::Packets(numbers) if numbers.iter().any(|number| known.lacks(*number)));
                    known.wants_picture |= is_short;
                }
            }
            Answer::Picture { as_of, sessions } => {
                // A picture that is older than what is known is the late answer to an earlier question.
                if as_of >= known.complete {
                    let asked_at = known.asking.as_ref().and_then(|asking| asking.asked_at(ask));
                    known.fresh_at = known.fresh_at.max(asked_at);
                }
                if as_of >= known.complete && (known.wants_picture || as_of > known.complete) {
                    known.picture(as_of);
                    self.counts.pictures += 1;
                    todo.push(Todo::Replace { gateway: of, as_of, sessions });
                }
            }
            Answer::Other(now) => {
                if now.is_some_and(|now| now.node != of.node || now.incarnation > of.incarnation) {
                    self.void_one(of, &mut todo);
                    return todo;
                }
                // It has not begun as that incarnation yet: asked again when the time comes.
            }
        }
        self.go_on(of.node, now_ms, &mut todo);
        todo
    }

    /// Time passed.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Todo> {
        let mut todo = Vec::new();
        let nodes: Vec<u16> = self.known.keys().copied().collect();
        for node in nodes {
            let Some(known) = self.known.get(&node) else { continue };
            if !known.was_seen && now_ms >= known.first_heard_at + self.times.unseen_after_ms {
                // Nothing of it was told, so nothing is to be taken back.
                self.known.remove(&node);
                continue;
            }
            self.go_on(node, now_ms, &mut todo);
        }
        todo
    }

    /// The cluster was looked at: these gateways live, and no others. One that was there and is not any more is void at once.
    pub fn living(&mut self, living: &[(GatewayId, Arc<str>)], now_ms: u64) -> Vec<Todo> {
        let mut todo = Vec::new();
        let ids: HashSet<GatewayId> = living.iter().map(|(id, _)| *id).collect();
        let gone = self.known.values().filter(|known| known.was_seen && !ids.contains(&known.id));
        let gone: Vec<GatewayId> = gone.map(|known| known.id).collect();
        gone.into_iter().for_each(|id| self.void_one(id, &mut todo));
        for (id, address) in living {
            if let Some(known) = self.meet(*id, address, now_ms, &mut todo) {
                known.was_seen = true;
                self.go_on(id.node, now_ms, &mut todo);
            }
        }
        todo
    }

    /// That incarnation and every earlier one of its node are void.
    pub fn void(&mut self, gateway: GatewayId) -> Vec<Todo> {
        let mut todo = Vec::new();
        self.void_one(gateway, &mut todo);
        todo
    }

    /// As of when everything that was told is true of all gateways that the cluster knows: as of now where there are none, of no time as
    /// long as nothing says it of one of them.
    pub fn fresh_at(&self, now_ms: u64) -> Option<u64> {
        let seen = self.known.values().filter(|known| known.was_seen);
        seen.map(Known::fresh_at).fold(Some(now_ms), Ord::min)
    }

    /// Gateways that the cluster knows and whose whole picture has not come yet.
    pub fn undrawn(&self) -> impl Iterator<Item = GatewayId> {
        self.known.values().filter(|known| known.was_seen && !known.is_drawn).map(|known| known.id)
    }

    /// Gateways that the cluster knows and of which nothing that is true after `since_ms` is known.
    pub fn unheard(&self, since_ms: u64) -> impl Iterator<Item = GatewayId> {
        let seen = self.known.values().filter(|known| known.was_seen);
        seen.filter(move |known| known.fresh_at().is_none_or(|at| at < since_ms)).map(|known| known.id)
    }

    /// Of the gateway of that node: the incarnation, up to where it is complete, and the highest number seen.
    pub fn standing(&self, node: u16) -> Option<(GatewayId, u64, u64)> {
        self.known.get(&node).map(|known| (known.id, known.complete, known.highest))
    }

    /// Packets that wait for what is missing before them.
    pub fn buffered(&self) -> usize {
        self.known.values().map(|known| known.buffered.len()).sum()
    }

    /// The gateway as it is known, as new where it was not. `None`: it is void.
    fn meet(&mut self, id: GatewayId, address: &Arc<str>, now_ms: u64, todo: &mut Vec<Todo>) -> Option<&mut Known> {
        if self.voided.get(&id.node).is_some_and(|voided| *voided >= id.incarnation) {
            return None;
        }
        if let Some(earlier) = self.known.get(&id.node).map(|known| known.id) {
            if earlier.incarnation > id.incarnation {
                return None;
            }
            if earlier != id {
                self.void_one(earlier, todo);
            }
        }
        let known = self.known.entry(id.node).or_insert_with(|| Known::new(id, address.clone(), now_ms));
        if known.address != *address && !address.is_empty() {
            known.address = address.clone();
        }
        Some(known)
    }

    fn void_one(&mut self, id: GatewayId, todo: &mut Vec<Todo>) {
        let voided = self.voided.entry(id.node).or_insert(0);
        if *voided >= id.incarnation {
            return;
        }
        *voided = id.incarnation;
        if self.known.get(&id.node).is_some_and(|known| known.id.incarnation <= id.incarnation) {
            self.known.remove(&id.node);
        }
        todo.push(Todo::Void(id));
    }

    /// Tells what has become complete, and asks about what is missing when it is time to.
    fn go_on(&mut self, node: u16, now_ms: u64, todo: &mut Vec<Todo>) {
        let Some(known) = self.known.get_mut(&node).filter(|known| known.was_seen) else { return };
        let mut came_at = None;
        while known.is_drawn {
            let Some(next) = known.next_complete() else { break };
            came_at = next.came_at;
            if !next.news.is_empty() {
                todo.push(Todo::Apply { gateway: known.id, number: known.complete, news: next.news });
            }
        }
        // The last one counts: one before it that came later tells nothing later.
        known.fresh_at = known.fresh_at.max(came_at);
        let missing = known.missing();
        known.gap_since = if missing == 0 { None } else { known.gap_since.or(Some(now_ms)) };
        let is_silent = now_ms >= known.fresh_at.unwrap_or(known.first_heard_at) + self.times.silent_after_ms;
        // Where all that was missing came after all, there is nothing to ask.
        known.wants_picture = is_silent || (known.wants_picture && (missing > 0 || !known.is_drawn));
        if let Some(asking) = &mut known.asking {
            let is_settled = match &asking.wanted {
                Wanted::Picture => !known.wants_picture,
                Wanted::Packets(numbers) => {
                    known.wants_picture || numbers.iter().all(|number| *number <= known.complete)
                }
            };
            if !is_settled && now_ms < asking.again_at {
                return;
            }
            if !is_settled && asking.attempt + 1 < ASKS_MAX {
                asking.attempt += 1;
                asking.asked_at[asking.attempt as usize] = now_ms;
                asking.again_at = now_ms + self.times.again_after(&asking.wanted);
                self.counts.asks += 1;
                todo.push(Todo::Ask(known.question()));
                return;
            }
            if !is_settled {
                self.counts.unanswered += 1;
                if asking.wanted == Wanted::Picture {
                    known.rest_until = now_ms + self.times.rest_ms;
                }
                known.wants_picture = true;
            }
            known.asking = None;
        }
        if now_ms < known.rest_until {
            return;
        }
        let is_due = known.gap_since.is_some_and(|since| now_ms >= since + self.times.ask_after_ms);
        known.wants_picture |= is_due && missing > ASKED_NUMBERS_MAX as u64;
        let wanted = if known.wants_picture {
            Wanted::Picture
        } else if is_due {
            self.counts.gaps += 1;
            Wanted::Packets(known.missing_numbers())
        } else {
            return;
        };
        self.last_ask += u64::from(ASKS_MAX);
        self.counts.asks += 1;
        let again_at = now_ms + self.times.again_after(&wanted);
        let asked_at = [now_ms; ASKS_MAX as usize];
        known.asking = Some(Asking { ask: self.last_ask, wanted, attempt: 0, asked_at, again_at });
        todo.push(Todo::Ask(known.question()));
    }
}

impl LedgerTimes {
    fn again_after(&self, wanted: &Wanted) -> u64 {
        match wanted {
            Wanted::Packets(_) => self.ask_again_ms,
            Wanted::Picture => self.picture_again_ms,
        }
    }
}

impl Asking {
    /// When the attempt of that name was made; `None`: it is none of this question.
    fn asked_at(&self, ask: u64) -> Option<u64> {
        let attempt = ask.checked_sub(self.ask).filter(|attempt| *attempt <= u64::from(self.attempt))?;
        self.asked_at.get(usize::try_from(attempt).ok()?).copied()
    }
}

enum Took {
    New,
    Repeated,
    NoRoom,
}

impl Known {
    fn new(id: GatewayId, address: Arc<str>, now_ms: u64) -> Self {
        Self {
            id,
            address,
            complete: 0,
            highest: 0,
            buffered: BTreeMap::new(),
            buffered_news: 0,
            wants_picture: true,
            is_drawn: false,
            gap_since: None,
            asking: None,
            rest_until: 0,
            fresh_at: None,
            first_heard_at: now_ms,
            was_seen: false,
        }
    }

    fn lacks(&self, number: u64) -> bool {
        number > self.complete && !self.buffered.contains_key(&number)
    }

    /// As of when what was told of it is true: before its picture has come, of no time.
    fn fresh_at(&self) -> Option<u64> {
        self.fresh_at.filter(|_| self.is_drawn)
    }

    fn take(&mut self, number: u64, packet: Waiting) -> Took {
        self.highest = self.highest.max(number);
        if !self.lacks(number) {
            return Took::Repeated;
        }
        let is_next = number == self.complete + 1 && self.is_drawn;
        let is_full = self.buffered.len() >= BUFFERED_PACKETS_MAX || self.buffered_news >= BUFFERED_NEWS_MAX;
        if is_full && !is_next {
            return Took::NoRoom;
        }
        self.buffered_news += packet.news.len();
        self.buffered.insert(number, packet);
        Took::New
    }

    /// The next packet, where it is there.
    fn next_complete(&mut self) -> Option<Waiting> {
        let next = self.buffered.remove(&(self.complete + 1))?;
        self.complete += 1;
        self.buffered_news -= next.news.len();
        Some(next)
    }

    /// The picture as of that number stands: what was waiting up to there is in it.
    fn picture(&mut self, as_of: u64) {
        self.complete = as_of;
        self.buffered = self.buffered.split_off(&(as_of + 1));
        // A number so far ahead of the gateway's own picture is none of its own.
        self.buffered.retain(|number, _| *number <= as_of + BUFFERED_PACKETS_MAX as u64);
        self.buffered_news = self.buffered.values().map(|packet| packet.news.len()).sum();
        // A number that was seen and is not there any more shows again with the next packet.
        self.highest = self.buffered.last_key_value().map_or(as_of, |(number, _)| *number);
        self.wants_picture = false;
        self.is_drawn = true;
        self.gap_since = None;
        self.rest_until = 0;
    }

    /// How many packets are missing up to the highest.
    fn missing(&self) -> u64 {
        self.highest - self.complete - self.buffered.len() as u64
    }

    fn missing_numbers(&self) -> Vec<u64> {
        let numbers = self.complete + 1..=self.highest;
        numbers.filter(|number| !self.buffered.contains_key(number)).take(ASKED_NUMBERS_MAX).collect()
    }

    fn question(&self) -> Question {
        let asking = self.asking.as_ref().expect("a question is under way");
        Question {
            ask: asking.ask + u64::from(asking.attempt),
            gateway: self.id,
            address: self.address.clone(),
            wanted: asking.wanted.clone(),
            attempt: asking.attempt,
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
