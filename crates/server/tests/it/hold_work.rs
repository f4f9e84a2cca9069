//! Workers that hold, extend, withdraw, fire and query messages at random, through all available servers. Each worker keeps the
//! [`History`] of its holds, and fails the test at the first answer that cannot be true.
//!
//! A worker uses only its own holds, so that it can check every answer; it also sends concurrent commands about the same hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::sync::watch;
use whimbrel_client::{Client, Extension, HoldFilter, HoldInfo, NewMessage};
use whimbrel_model::Timestamp;

use super::hold_answer::{HoldReply, ask, millis_of, publish_reply};
use super::hold_model::{Answer, Command, History, NewDue, Span};
use super::random::Random;

/// The topic of all workers; each worker also has one of its own.
pub const SHARED_TOPIC: (&str, u32) = ("late-all", 8);
const BATCH_MAX: u64 = 15;
const DELAY_MS_MAX: i64 = 12_000;
const FILLER_BYTES_MAX: u64 = 400;
/// Maximum number of unanswered commands of a hold: each doubles the number of possible states.
const UNANSWERED_MAX: usize = 4;
/// Less than the number of keys that a hold remembers, so that every repeat is detected.
const KEYED_MOVES_MAX: u64 = 6;
/// Holds that a worker still uses; older ones are left to fire.
const AT_HAND_MAX: usize = 120;
const GROUP_MAX: u64 = 3;
/// Delay of a worker if no server is available.
const PAUSE: Duration = Duration::from_millis(5);

/// The addresses of the available servers.
pub type ServerUrls = Arc<Vec<String>>;

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn rfc3339(ms: i64) -> String {
    Timestamp::from_millis(ms).to_string()
}

/// The delays of holds, and the rate of operations.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The longest delay of a hold, in milliseconds.
    pub delay_ms_max: i64,
    /// The pause of a worker after each operation.
    pub pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { delay_ms_max: DELAY_MS_MAX, pause: Duration::ZERO }
    }
}

/// The state that all workers share.
#[derive(Clone)]
pub struct Work {
    pub doors: watch::Receiver<ServerUrls>,
    pub ended: Arc<AtomicBool>,
    /// The number of operations, answered or not.
    pub operations: Arc<AtomicU64>,
    /// Timeout of an answer.
    pub answer_wait: Duration,
    pub pace: Pace,
}

/// The way in which the server detects a repeat of the publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RepeatId {
    Nothing,
    Id,
    Key,
}

/// The requested due time of a message.
#[derive(Debug, Clone, Copy)]
enum RequestedDue {
    After(i64),
    At(i64),
}

/// One hold with its history.
pub struct Tracked {
    pub worker: u64,
    pub number: u64,
    pub topic: String,
    brought: RepeatId,
    asked: RequestedDue,
    /// Known after the first answer, or from the start for a publisher's id.
    pub id: Option<String>,
    first_due: Option<i64>,
    keyed: Vec<(u64, Command)>,
    pub history: History,
    /// The position of the message according to a fire.
    pub place: Option<(u32, u64)>,
}

/// The payload, derived from the publisher and the number, so that every byte can be checked.
pub fn payload(worker: u64, number: u64) -> String {
    let mut random = Random(worker << 32 ^ number);
    let filler: String = (0..random.below(FILLER_BYTES_MAX)).map(|_| (b'a' + random.below(26) as u8) as char).collect();
    format!("{worker} {number} {filler}")
}

impl Tracked {
    fn message(&self) -> NewMessage {
        let message = NewMessage::text(payload(self.worker, self.number));
        let message = match self.brought {
            RepeatId::Nothing => message,
            RepeatId::Id => message.id(self.own_name()),
            RepeatId::Key => message.idempotency_key(self.own_name()),
        };
        match self.asked {
            RequestedDue::After(ms) => message.delay(format!("{ms}ms")),
            RequestedDue::At(time) => message.deliver_at(rfc3339(time)),
        }
    }

    fn own_name(&self) -> String {
        format!("late-{}-{}", self.worker, self.number)
    }

    fn due_asked(&self, from: i64, until: i64) -> Span {
        match self.asked {
            RequestedDue::After(ms) => Span { low: from + ms, high: until + ms },
            RequestedDue::At(time) => Span::exactly(time),
        }
    }
}

/// Counts of events by name.
#[derive(Debug, Default, Clone)]
pub struct Tally(pub HashMap<String, u64>);

impl Tally {
    pub fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    pub fn lines(&self) -> String {
        let mut counts: Vec<_> = self.0.iter().collect();
        counts.sort();
        counts.iter().map(|(what, count)| format!("  {count:>7} {what}\n")).collect()
    }
}

pub struct Worker {
    number: u64,
    random: Random,
    work: Work,
    clients: HashMap<String, Client>,
    next: u64,
    pub holds: Vec<Tracked>,
    pub tally: Tally,
}

pub fn own_topic(worker: u64) -> (String, u32) {
    (format!("late-{worker}"), 1 + (worker % 4) as u32)
}

impl Worker {
    pub fn new(number: u64, seed: u64, work: Work) -> Self {
        let random = Random(seed);
        Self { number, random, work, clients: HashMap::new(), next: 0, holds: Vec::new(), tally: Tally::default() }
    }

    pub async fn run(mut self) -> Self {
        while !self.work.ended.load(Ordering::Relaxed) {
            let Some(client) = self.client() else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let begun = self.operations();
            match self.random.below(100) {
                0..20 => self.publish(&client).await,
                20..24 => self.publish_batch(&client).await,
                24..29 => self.publish_again(&client).await,
                29..31 => self.publish_another_under_the_same_id(&client).await,
                31..88 => self.command(&client).await,
                88..94 => self.commands_at_once().await,
                94..97 => self.list(&client).await,
                97..99 => self.count(&client).await,
                _ => self.repeat_a_move(&client).await,
            }
            if self.operations() == begun {
                tokio::time::sleep(PAUSE).await;
            }
            if !self.work.pace.pause.is_zero() {
                tokio::time::sleep(self.work.pace.pause).await;
            }
        }
        self
    }

    fn operations(&self) -> u64 {
        self.work.operations.load(Ordering::Relaxed)
    }

    /// A client of one of the available servers.
    fn client(&mut self) -> Option<Client> {
        let doors = self.work.doors.borrow().clone();
        if doors.is_empty() {
            return None;
        }
        let url = &doors[self.random.below(doors.len() as u64) as usize];
        let wait = self.work.answer_wait;
        let client =
            self.clients.entry(url.clone()).or_insert_with(|| Client::new(url).unwrap().with_answer_wait(wait));
        Some(client.clone())
    }

    fn new_hold(&mut self) -> Tracked {
        let number = self.next;
        self.next += 1;
        let delay = match self.random.below(10) {
            0 => 0,
            1 => self.random.between(-1000, 50),
            2..6 => self.random.between(0, 1500),
            _ => self.random.between(0, self.work.pace.delay_ms_max),
        };
        let asked =
            if self.random.one_in(2) { RequestedDue::After(delay.max(0)) } else { RequestedDue::At(now_ms() + delay) };
        let brought = [RepeatId::Nothing, RepeatId::Id, RepeatId::Key][self.random.below(3) as usize];
        let topic = if self.random.one_in(2) { SHARED_TOPIC.0.to_owned() } else { own_topic(self.number).0 };
        let mut hold = Tracked {
            worker: self.number,
            number,
            topic,
            brought,
            asked,
            id: None,
            first_due: None,
            keyed: Vec::new(),
            history: History::default(),
            place: None,
        };
        hold.id = (brought == RepeatId::Id).then(|| hold.own_name());
        hold
    }

    async fn publish(&mut self, client: &Client) {
        let hold = self.new_hold();
        self.holds.push(hold);
        self.publish_one(client, self.holds.len() - 1).await;
    }

    /// Publishes one hold, for the first time or again.
    async fn publish_one(&mut self, client: &Client, index: usize) {
        let (message, topic) = (self.holds[index].message(), self.holds[index].topic.clone());
        let from = now_ms();
        let heard = publish_reply(client.publish(&topic, &message).await);
        self.published(index, heard, from);
    }

    fn published(&mut self, index: usize, heard: HoldReply<(String, i64)>, from: i64) {
        let until = now_ms();
        let hold = &mut self.holds[index];
        let command = Command::Publish { due: hold.due_asked(from, until) };
        self.work.operations.fetch_add(1, Ordering::Relaxed);
        let outcome = match heard {
            HoldReply::Answer((id, due)) => {
                self.tally.count(if hold.first_due.is_some() { "publish: repeated" } else { "publish: held" });
                if let (Some(known), Some(first)) = (&hold.id, hold.first_due) {
                    assert_eq!((&id, due), (known, first), "a repeat of {} got another answer", hold.own_name());
                }
                assert!(hold.id.as_ref().is_none_or(|known| *known == id), "{} got the id {id}", hold.own_name());
                (hold.id, hold.first_due) = (Some(id), Some(due));
                hold.history.asked(&[(command, Some(Answer::Held { due }))], from, until)
            }
            HoldReply::NotDone(why) => {
                self.tally.count(&format!("publish: {why}"));
                Ok(())
            }
            HoldReply::InDoubt(why) => {
                self.tally.count(&format!("publish: {why}"));
                hold.history.asked(&[(command, None)], from, until)
            }
        };
        self.judge(index, outcome);
    }

    async fn publish_batch(&mut self, client: &Client) {
        let topic = own_topic(self.number).0;
        let first = self.holds.len();
        for _ in 0..1 + self.random.below(BATCH_MAX) {
            let mut hold = self.new_hold();
            hold.topic.clone_from(&topic);
            // A batch carries ids, and no idempotency keys.
            if hold.brought == RepeatId::Key {
                hold.brought = RepeatId::Nothing;
            }
            self.holds.push(hold);
        }
        let messages: Vec<NewMessage> = self.holds[first..].iter().map(Tracked::message).collect();
        let from = now_ms();
        let answers = client.publish_batch(&topic, &messages).await;
        match answers {
            Ok(accepted) => {
                assert_eq!(accepted.len(), messages.len());
                for (at, accepted) in accepted.into_iter().enumerate() {
                    self.published(first + at, publish_reply(Ok(accepted)), from);
                }
            }
            Err(error) => {
                let heard = publish_reply(Err(error));
                for at in 0..messages.len() {
                    self.published(first + at, heard.clone(), from);
                }
            }
        }
    }

    /// The same publish again, under its id or key.
    async fn publish_again(&mut self, client: &Client) {
        let index = self.pick(|hold| hold.brought != RepeatId::Nothing);
        if let Some(index) = index {
            self.publish_one(client, index).await;
        }
    }

    /// Checks that another body under a used id or key is rejected.
    async fn publish_another_under_the_same_id(&mut self, client: &Client) {
        let Some(index) = self.pick(|hold| hold.brought != RepeatId::Nothing && hold.first_due.is_some()) else {
            return;
        };
        let (message, topic) = (self.holds[index].message(), self.holds[index].topic.clone());
        let other = NewMessage { payload: "another".into(), ..message };
        self.work.operations.fetch_add(1, Ordering::Relaxed);
        match publish_reply(client.publish(&topic, &other).await) {
            HoldReply::Answer(answer) => {
                panic!("another body than {}'s got {answer:?}", self.holds[index].own_name())
            }
            HoldReply::NotDone(why) | HoldReply::InDoubt(why) => {
                self.tally.count(&format!("publish of another body: {why}"))
            }
        }
    }

    /// One of the latest holds that satisfy the condition.
    fn pick(&mut self, is_so: impl Fn(&Tracked) -> bool) -> Option<usize> {
        let first = self.holds.len().saturating_sub(AT_HAND_MAX);
        let can_be = |hold: &Tracked| hold.history.unanswered() < UNANSWERED_MAX && is_so(hold);
        let at_hand: Vec<usize> = (first..self.holds.len()).filter(|index| can_be(&self.holds[*index])).collect();
        let count = at_hand.len() as u64;
        (count > 0).then(|| at_hand[self.random.below(count) as usize])
    }

    fn choose_command(&mut self, index: usize) -> Command {
        match self.random.below(10) {
            0..2 => Command::Withdraw,
            2 => Command::Fire,
            3..5 => Command::Look,
            _ => {
                let to = match self.random.below(3) {
                    0 => NewDue::Until(now_ms() + self.random.between(-500, self.work.pace.delay_ms_max)),
                    1 => NewDue::By(self.random.between(-3000, 3000)),
                    _ => NewDue::By(self.random.between(0, 1000)),
                };
                let hold = &mut self.holds[index];
                let if_version = match self.random.below(6) {
                    0..2 => hold.history.version(),
                    // No hold has this version.
                    2 => Some(u64::MAX >> 12),
                    _ => None,
                };
                let keyed = hold.keyed.len() as u64;
                let key = (keyed < KEYED_MOVES_MAX && self.random.one_in(3)).then_some(keyed);
                let command = Command::Extend { to, if_version, key };
                hold.keyed.extend(key.map(|key| (key, command.clone())));
                command
            }
        }
    }

    async fn command(&mut self, client: &Client) {
        let Some(index) = self.pick(|hold| hold.id.is_some()) else { return };
        let command = self.choose_command(index);
        self.ask_group(index, vec![(client.clone(), command)]).await;
    }

    /// Repeats an extend under its key.
    async fn repeat_a_move(&mut self, client: &Client) {
        let Some(index) = self.pick(|hold| !hold.keyed.is_empty()) else { return };
        let keyed = &self.holds[index].keyed;
        let (_, command) = keyed[self.random.below(keyed.len() as u64) as usize].clone();
        self.ask_group(index, vec![(client.clone(), command)]).await;
    }

    /// Sends several concurrent commands about one hold, possibly through several servers.
    async fn commands_at_once(&mut self) {
        let Some(index) = self.pick(|hold| hold.id.is_some() && hold.history.unanswered() == 0) else { return };
        let mut group = Vec::new();
        for _ in 0..2 + self.random.below(GROUP_MAX - 1) {
            let Some(client) = self.client() else { return };
            group.push((client, self.choose_command(index)));
        }
        self.ask_group(index, group).await;
    }

    async fn ask_group(&mut self, index: usize, group: Vec<(Client, Command)>) {
        let Some(id) = self.holds[index].id.clone() else { return };
        let from = now_ms();
        let asked = group.iter().map(|(client, command)| {
            let key = |key: &u64| format!("{id}-move-{key}");
            let id = &id;
            async move {
                match command {
                    Command::Extend { to, if_version, key: number } => {
                        let extension = match to {
                            NewDue::By(ms) => Extension::by(format!("{ms}ms")),
                            NewDue::Until(time) => Extension::until(rfc3339(*time)),
                        };
                        let idempotency_key = number.as_ref().map(key);
                        ask(client, id, &Extension { if_version: *if_version, idempotency_key, ..extension }).await
                    }
                    Command::Withdraw => super::hold_answer::withdraw(client, id).await,
                    Command::Fire => super::hold_answer::fire(client, id).await,
                    Command::Look | Command::Publish { .. } => super::hold_answer::look(client, id).await,
                }
            }
        });
        let heard = join_all(asked).await;
        let until = now_ms();
        self.work.operations.fetch_add(group.len() as u64, Ordering::Relaxed);
        let mut judged = Vec::new();
        for ((_, command), heard) in group.into_iter().zip(heard) {
            let word = word_of(&command);
            match heard {
                HoldReply::Answer((answer, place)) => {
                    self.tally.count(&format!("{word}: {}", word_of_answer(&answer)));
                    self.holds[index].place = self.holds[index].place.or(place);
                    judged.push((command, Some(answer)));
                }
                HoldReply::NotDone(why) => self.tally.count(&format!("{word}: {why}")),
                HoldReply::InDoubt(why) => {
                    self.tally.count(&format!("{word}: {why}"));
                    judged.push((command, None));
                }
            }
        }
        let outcome = self.holds[index].history.asked(&judged, from, until);
        self.judge(index, outcome);
    }

    /// Lists one topic in pages: in due order, with every certainly pending hold and no certainly finished one.
    async fn list(&mut self, client: &Client) {
        let topic = if self.random.one_in(4) { SHARED_TOPIC.0.to_owned() } else { own_topic(self.number).0 };
        let from = now_ms();
        let (low, high) =
            (from + self.random.between(-2000, 3000), from + self.random.between(3000, self.work.pace.delay_ms_max));
        let is_ranged = self.random.one_in(2);
        let mut filter = HoldFilter {
            topic: Some(topic.clone()),
            from: is_ranged.then(|| rfc3339(low)),
            to: is_ranged.then(|| rfc3339(high)),
            limit: Some(1 + self.random.below(60) as usize),
            ..HoldFilter::default()
        };
        let mut listed: Vec<HoldInfo> = Vec::new();
        loop {
            self.work.operations.fetch_add(1, Ordering::Relaxed);
            match client.holds(&filter).await {
                Ok(page) => {
                    listed.extend(page.holds);
                    match page.cursor {
                        Some(cursor) => filter.cursor = Some(cursor),
                        None => break,
                    }
                }
                Err(error) => {
                    let heard = HoldReply::<()>::of(error);
                    self.tally.count(&format!("list: {}", heard.why()));
                    return;
                }
            }
        }
        let until = now_ms();
        self.tally.count("list: listed");
        self.judge_list(&topic, &listed, is_ranged.then_some((low, high)), from, until);
    }

    fn judge_list(&mut self, topic: &str, listed: &[HoldInfo], range: Option<(i64, i64)>, from: i64, until: i64) {
        let dues: Vec<i64> = listed.iter().map(|hold| millis_of(&hold.due)).collect();
        assert!(dues.is_sorted(), "a list is not in due order: {dues:?}");
        let is_within = |due: i64| range.is_none_or(|(low, high)| low <= due && due < high);
        let mut by_id: HashMap<&str, (i64, u64)> = HashMap::new();
        for (hold, due) in listed.iter().zip(dues) {
            assert!(hold.state == "held" && hold.topic == topic && is_within(due), "{hold:?} in a list of {topic}");
            by_id.insert(&hold.id, (due, hold.version.unwrap()));
        }
        for index in 0..self.holds.len() {
            let hold = &mut self.holds[index];
            let Some(id) = hold.id.as_deref().filter(|_| hold.topic == topic) else { continue };
            let outcome = match by_id.get(id) {
                Some((due, version)) => {
                    let answer = Answer::Pending { due: *due, version: *version };
                    hold.history.asked(&[(Command::Look, Some(answer))], from, until)
                }
                None => match hold.history.certainly_due().filter(|due| *due > until && is_within(*due)) {
                    Some(due) => {
                        Err(format!("{id}, due at {due}, is not in the list of {from}..{until}\n{:?}", hold.history))
                    }
                    None => Ok(()),
                },
            };
            self.judge(index, outcome);
        }
    }

    /// Counts the worker's own topic, whose holds are all its own.
    async fn count(&mut self, client: &Client) {
        let topic = own_topic(self.number).0;
        let filter = HoldFilter { topic: Some(topic.clone()), ..HoldFilter::default() };
        self.work.operations.fetch_add(1, Ordering::Relaxed);
        let counts = match client.count_holds(&filter).await {
            Ok(counts) => counts,
            Err(error) => {
                let heard = HoldReply::<()>::of(error);
                self.tally.count(&format!("count: {}", heard.why()));
                return;
            }
        };
        let until = now_ms();
        self.tally.count("count: counted");
        let own = || self.holds.iter().filter(|hold| hold.topic == topic);
        let least = own().filter(|hold| hold.history.certainly_due().is_some_and(|due| due > until)).count() as u64;
        let most = own().filter(|hold| hold.history.may_be_pending()).count() as u64;
        assert!((least..=most).contains(&counts.count), "{} are counted, not {least}..={most}", counts.count);
        let in_buckets: u64 = counts.buckets.iter().map(|bucket| bucket.count).sum();
        assert_eq!(in_buckets, counts.count, "{counts:?}");
    }

    fn judge(&self, index: usize, outcome: Result<(), String>) {
        if let Err(contradiction) = outcome {
            let hold = &self.holds[index];
            panic!("{} ({:?}) in {}: {contradiction}", hold.own_name(), hold.id, hold.topic);
        }
    }
}

fn word_of(command: &Command) -> &'static str {
    match command {
        Command::Publish { .. } => "publish",
        Command::Extend { if_version: Some(_), .. } => "extend if version",
        Command::Extend { key: Some(_), .. } => "extend with key",
        Command::Extend { .. } => "extend",
        Command::Withdraw => "withdraw",
        Command::Fire => "fire",
        Command::Look => "look",
    }
}

fn word_of_answer(answer: &Answer) -> &'static str {
    match answer {
        Answer::Held { .. } => "held",
        Answer::Rescheduled { .. } => "rescheduled",
        Answer::Withdrawn => "withdrawn",
        Answer::Fired { .. } => "fired",
        Answer::Pending { .. } => "pending",
        Answer::AlreadyFired { .. } => "already fired",
        Answer::AlreadyWithdrawn => "already withdrawn",
        Answer::OtherVersion => "another version",
        Answer::Unknown => "unknown",
    }
}
