//! The probe after a fault: the time from the moment at which the brokers are ready until every part serves again.
//!
//! It publishes to every partition, reads the message back and waits until the endpoint of the subscription has it. On every shard of the
//! holds it withdraws one hold and lets another one fire. It pushes to a connected device of every partition of the pushes. Each request is
//! short and is repeated, as a client would; the recovery time is that of the slowest step.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt as _, LocalBoxFuture, join_all};
use whimbrel_client::{Accepted, Client, Held, NewMessage, NewPush, Position, ReadFrom};
use whimbrel_model::hold::shard_of;
use whimbrel_model::partitioner::partition_of;

use super::committed_reader::CommittedRecord;
use super::hold_answer::{HoldReply, millis_of, withdraw};
use super::hold_model::Answer;
use super::outage_people::ProbeDevices;
use super::outage_subscription::Arrivals;

/// Timeout of a request before it is repeated.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
const REPEAT_PAUSE: Duration = Duration::from_millis(30);
/// A part that does not serve after this time is stuck.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The delay of the holds to withdraw. If withdrawals fail for longer, the hold fires.
const WITHDRAWN_DELAY: &str = "3s";
/// The delay of the holds that fire. It is part of the recovery time.
const FIRED_DELAY: &str = "200ms";
/// Messages of one read that looks for a fired hold.
const READ_LIMIT: usize = 1000;
const PROBE_PREFIX: &str = "probe";

/// Whether a payload is a probe's, and not the workload's.
pub fn is_probe(payload: &str) -> bool {
    payload.starts_with(PROBE_PREFIX)
}

/// The parts of the server that are probed.
pub struct Probe {
    pub client: Client,
    /// The topics with their partitions; the subscription reads all of them.
    pub topics: Vec<(String, u32)>,
    /// The topic of the holds, with its partitions.
    pub hold_topic: (String, u32),
    pub hold_shards: u32,
    pub push_partitions: u32,
    /// The messages that the subscription has delivered.
    pub arrivals: Arrivals,
    pub devices: ProbeDevices,
    pub state: ProbeState,
}

/// The record of earlier probes, for the checks at the end.
#[derive(Default)]
pub struct ProbeState {
    /// The number of times that everything was probed.
    calls: Cell<u64>,
    /// Holds that were answered as withdrawn.
    withdrawn: RefCell<Vec<String>>,
    /// Holds that fired, with their due times in milliseconds since 1970.
    fired: RefCell<Vec<(String, i64)>>,
}

/// A step of the probe that succeeded.
struct Step {
    name: &'static str,
    /// The part of the server.
    part: String,
    /// The time from the ready brokers to the success.
    time: Duration,
    /// The time that the step itself took.
    duration: Duration,
    last_error: Option<String>,
}

pub struct Recovery {
    pub time: Duration,
    /// The part that took longest, after the longest step in it, with that step's last error.
    slowest: String,
    /// The longest time of each step.
    by_step: BTreeMap<&'static str, Duration>,
}

impl Recovery {
    fn of(steps: &[Step]) -> Self {
        let mut by_step: BTreeMap<&'static str, Duration> = BTreeMap::new();
        for step in steps {
            let longest = by_step.entry(step.name).or_default();
            *longest = step.time.max(*longest);
        }
        let last = steps.iter().max_by_key(|step| step.time).expect("the probe has steps");
        let of_part = steps.iter().filter(|step| step.part == last.part);
        let longest = of_part.max_by_key(|step| step.duration).unwrap_or(last);
        let error = longest.last_error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        Self { time: last.time, slowest: format!("{} {}{error}", longest.name, last.part), by_step }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t", self.time.as_millis(), self.slowest)?;
        let steps = self.by_step.iter().map(|(step, time)| format!("{step} {}", time.as_millis()));
        write!(f, "{}", steps.collect::<Vec<_>>().join(", "))
    }
}

/// One probe of everything.
struct Call<'a> {
    probe: &'a Probe,
    client: Client,
    number: u64,
    ready: Instant,
    steps: RefCell<Vec<Step>>,
}

impl Probe {
    /// Probes everything at once, and measures from the moment at which the brokers were ready.
    pub async fn measure(&self, ready: Instant) -> Recovery {
        let call = self.call(ready);
        let mut parts: Vec<LocalBoxFuture<'_, Result<(), String>>> = Vec::new();
        for (topic, partitions) in &self.topics {
            for partition in 0..*partitions {
                parts.push(call.publish_and_deliver(topic, partition, *partitions).boxed_local());
            }
        }
        for shard in 0..self.hold_shards {
            parts.push(call.hold_and_withdraw(shard).boxed_local());
            parts.push(call.hold_and_fire(shard).boxed_local());
        }
        for partition in 0..self.push_partitions {
            parts.push(call.push(partition).boxed_local());
        }
        let stuck: Vec<String> = join_all(parts).await.into_iter().filter_map(Result::err).collect();
        assert!(stuck.is_empty(), "stuck for {RECOVERY_MAX:?} after the brokers were ready:\n  {}", stuck.join("\n  "));
        Recovery::of(&call.steps.take())
    }

    /// Publishes, holds and pushes everywhere once, while fewer than `min.insync.replicas` brokers are available. Checks that the server
    /// acknowledges no request.
    pub async fn check_refused(&self) {
        let call = &self.call(Instant::now());
        let mut requests: Vec<LocalBoxFuture<'_, Option<String>>> = Vec::new();
        for (topic, partitions) in &self.topics {
            for partition in 0..*partitions {
                let message = NewMessage::text(PROBE_PREFIX).key(name_in(partition, *partitions));
                let publish =
                    async move { call.client.publish(topic, &message).await.ok().map(|place| format!("{place:?}")) };
                requests.push(publish.boxed_local());
            }
        }
        for shard in 0..self.hold_shards {
            let hold = async move {
                let id = call.hold_ids("refused", shard).next().unwrap_or_default();
                call.hold(&id, shard, FIRED_DELAY).await.ok().map(|held| format!("{held:?}"))
            };
            requests.push(hold.boxed_local());
        }
        for partition in 0..self.push_partitions {
            let push = async move {
                let push = NewPush::text(format!("{PROBE_PREFIX} refused"));
                call.client.push(self.devices.uid(partition), &push).await.ok().map(|pushed| format!("{pushed:?}"))
            };
            requests.push(push.boxed_local());
        }
        let acknowledged: Vec<String> = join_all(requests).await.into_iter().flatten().collect();
        assert!(acknowledged.is_empty(), "acknowledged without the required copies:\n  {}", acknowledged.join("\n  "));
    }

    fn call(&self, ready: Instant) -> Call<'_> {
        let number = self.state.calls.get();
        self.state.calls.set(number + 1);
        let client = self.client.clone().with_answer_wait(ANSWER_WAIT);
        Call { probe: self, client, number, ready, steps: RefCell::default() }
    }

    /// The holds that fired, with their due times.
    pub fn fired(&self) -> Vec<(String, i64)> {
        self.state.fired.borrow().clone()
    }

    /// Checks that withdrawn holds are not in their topic, that fired ones are, and that no device received a message again.
    pub fn check(self, records: &[CommittedRecord]) {
        let count = |id: &String| records.iter().filter(|record| record.id == *id).count();
        for id in &*self.state.withdrawn.borrow() {
            assert_eq!(count(id), 0, "{id} was withdrawn and is stored");
        }
        for (id, _) in &*self.state.fired.borrow() {
            assert_eq!(count(id), 1, "{id} fired and is not stored exactly once");
        }
        self.devices.check();
    }
}

impl Call<'_> {
    /// Repeats a request until it succeeds, and records the time.
    async fn step<T>(
        &self,
        name: &'static str,
        part: &str,
        mut request: impl AsyncFnMut() -> Result<T, String>,
    ) -> Result<T, String> {
        let began = Instant::now();
        let mut last_error = None;
        loop {
            match request().await {
                Ok(result) => {
                    let (part, time) = (part.to_owned(), self.ready.elapsed());
                    let step = Step { name, part, time, duration: began.elapsed(), last_error };
                    self.steps.borrow_mut().push(step);
                    return Ok(result);
                }
                Err(error) if self.ready.elapsed() > RECOVERY_MAX => return Err(format!("{name} {part}: {error}")),
                Err(error) => last_error = Some(error),
            }
            tokio::time::sleep(REPEAT_PAUSE).await;
        }
    }

    async fn publish_and_deliver(&self, topic: &str, partition: u32, partitions: u32) -> Result<(), String> {
        let part = format!("{topic}/{partition}");
        let message = NewMessage::text(PROBE_PREFIX).key(name_in(partition, partitions));
        let publish = async || match self.client.publish(topic, &message).await {
            Ok(Accepted::Published(place)) => Ok(place),
            Ok(Accepted::Held(held)) => Err(format!("{held:?}")),
            Err(error) => Err(error.to_string()),
        };
        let place = self.step("publish", &part, publish).await?;
        assert_eq!(place.partition, partition, "{place:?} in {topic}");
        let position = Position::Offset(place.offset);
        let from = ReadFrom { partition, position, limit: Some(1), wait: None };
        let read = async || match self.client.read(topic, &from).await {
            Ok(page) if page.messages.iter().any(|message| message.id == place.id) => Ok(()),
            Ok(page) => Err(format!("{} is not visible, next offset {}", place.offset, page.next_offset)),
            Err(error) => Err(error.to_string()),
        };
        self.step("read", &part, read).await?;
        self.step("deliver", &part, async || self.arrival(&place.id)).await
    }

    fn arrival(&self, id: &str) -> Result<(), String> {
        let arrived = self.probe.arrivals.time_ms(id);
        arrived.map(|_| ()).ok_or_else(|| format!("{id} has not reached the endpoint"))
    }

    /// Ids of holds on a shard. Each attempt uses a new one: an earlier attempt may still be in progress.
    fn hold_ids(&self, purpose: &str, shard: u32) -> impl Iterator<Item = String> + use<> {
        let (call, shards) = (self.number, self.probe.hold_shards);
        let prefix = format!("{PROBE_PREFIX}-{purpose}-{call}");
        (0..).map(move |number| format!("{prefix}-{number}")).filter(move |id| shard_of(id, shards) == shard)
    }

    async fn hold(&self, id: &str, shard: u32, delay: &str) -> Result<Held, String> {
        let (topic, partitions) = &self.probe.hold_topic;
        let key = name_in(shard % partitions, *partitions);
        let message = NewMessage::text(PROBE_PREFIX).id(id).key(key).delay(delay);
        self.client.hold(topic, &message).await.map_err(|error| error.to_string())
    }

    async fn hold_and_withdraw(&self, shard: u32) -> Result<(), String> {
        let part = format!("holds/{shard}");
        let mut ids = self.hold_ids("withdrawn", shard);
        let hold = async || self.hold(&ids.next().unwrap_or_default(), shard, WITHDRAWN_DELAY).await;
        let id = self.step("hold", &part, hold).await?.id;
        let withdraw = async || match withdraw(&self.client, &id).await {
            HoldReply::Answer((Answer::Withdrawn | Answer::AlreadyWithdrawn, _)) => {
                self.probe.state.withdrawn.borrow_mut().push(id.clone());
                Ok(())
            }
            // A hold that has fired was ended by a commit of its shard, too.
            HoldReply::Answer((Answer::AlreadyFired { .. }, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        self.step("withdraw", &part, withdraw).await
    }

    /// Waits until the message of a hold is in its topic, and then at the endpoint.
    async fn hold_and_fire(&self, shard: u32) -> Result<(), String> {
        let part = format!("holds/{shard}");
        let mut ids = self.hold_ids("fired", shard);
        let hold = async || self.hold(&ids.next().unwrap_or_default(), shard, FIRED_DELAY).await;
        let held = self.step("hold", &part, hold).await?;
        let (topic, partitions) = &self.probe.hold_topic;
        let mut position = Position::Since(held.due.clone());
        let read = async || {
            let from = ReadFrom {
                partition: shard % partitions,
                position: position.clone(),
                limit: Some(READ_LIMIT),
                wait: None,
            };
            let page = self.client.read(topic, &from).await.map_err(|error| error.to_string())?;
            if page.messages.iter().any(|message| message.id == held.id) {
                return Ok(());
            }
            if !page.messages.is_empty() {
                position = Position::Offset(page.next_offset);
            }
            Err(format!("{} is not in {topic}, next offset {}", held.id, page.next_offset))
        };
        self.step("fire", &part, read).await?;
        self.probe.state.fired.borrow_mut().push((held.id.clone(), millis_of(&held.due)));
        self.step("deliver fired", &part, async || self.arrival(&held.id)).await
    }

    async fn push(&self, partition: u32) -> Result<(), String> {
        let part = format!("push/{partition}");
        let (uid, payload) = (self.probe.devices.uid(partition), format!("{PROBE_PREFIX}-{}", self.number));
        let push = async || {
            let push = NewPush::text(payload.clone());
            self.client.push(uid, &push).await.map(|_| ()).map_err(|error| error.to_string())
        };
        self.step("push", &part, push).await?;
        let receive = async || {
            let has = self.probe.devices.has(partition, &payload);
            has.then_some(()).ok_or_else(|| format!("the device of {uid} has not received `{payload}`"))
        };
        self.step("receive", &part, receive).await
    }
}

/// A key or user of that partition.
pub fn name_in(partition: u32, partitions: u32) -> String {
    let names = (0..).map(|number| format!("{PROBE_PREFIX}-{number}"));
    let mut names = names.filter(|name| partition_of(name.as_bytes(), partitions) == partition);
    names.next().unwrap_or_default()
}
