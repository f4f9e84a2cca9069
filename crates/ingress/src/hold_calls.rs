//! Questions and commands about holds, as every door asks them: HTTP, gRPC, and the look for a message by its id. Nothing is decided
//! here; the owner of the shard decides, and what it answers becomes the caller's answer or problem.
//!
//! A key must not learn of the holds of topics that it is not for, nor of held pushes where it does not push, so its commands begin with a
//! look.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::ports::{Ask, HoldView, NewDue, Told};
use whimbrel_model::push::is_system_hold;
use whimbrel_model::{Ending, HoldEnd, HoldId, Timestamp, TopicNumber, parse_duration};

use super::door::Door;
use super::draft::{Brought, DELAY_MAX, is_too_far};
use super::keys::{Caller, Scope};
use super::problem::{Code, Problem};
use super::query::shown;

/// Shards that are asked at the same time, where all of them are.
const SHARDS_AT_ONCE: usize = 64;

/// What is known of a hold.
#[derive(Debug)]
pub(super) enum Found {
    Pending(HoldView),
    Ended(HoldEnd),
}

impl Found {
    /// Empty where the topic is gone.
    pub(super) fn topic_name(&self, door: &Door) -> Arc<str> {
        match self {
            Self::Pending(view) => Arc::clone(&view.topic_name),
            Self::Ended(end) => topic_name(door, end.topic).into(),
        }
    }
}

/// A hold's new due time, with the conditions of the move.
#[derive(Debug)]
pub(super) struct Extension {
    pub(super) to: NewDue,
    pub(super) if_version: Option<u64>,
    pub(super) key: Option<Box<str>>,
}

impl Extension {
    pub(super) fn checked(
        by: Option<&str>,
        until: Option<&str>,
        if_version: Option<u64>,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, Problem> {
        let to = match (by, until) {
            (Some(by), None) => NewDue::By(signed_millis(by)?),
            (None, Some(until)) => {
                let until = Timestamp::parse_no_earlier(until)
                    .map_err(|error| Problem::new(Code::BadTime, error.to_string()))?;
                if is_too_far(until, now) {
                    return Err(Problem::new(Code::BadTime, TOO_FAR));
                }
                NewDue::Until(until)
            }
            _ => return Err(Problem::new(Code::BadParameter, "give `by` or `until`, one of them")),
        };
        let key = Brought::checked(None, key)?.map(|brought| brought.text);
        Ok(Self { to, if_version, key })
    }
}

const TOO_FAR: &str = "a message can be held for two years at most";

/// `10m`, `-10m`, or milliseconds with or without a sign.
fn signed_millis(text: &str) -> Result<i64, Problem> {
    let (size, is_earlier) = text.strip_prefix('-').map_or((text, false), |size| (size, true));
    let size = parse_duration(size).map_err(|error| Problem::new(Code::BadDuration, error.to_string()))?;
    let beyond = || Problem::new(Code::BadDuration, TOO_FAR);
    let millis = i64::try_from(size.as_millis()).map_err(|_| beyond())?;
    if size > DELAY_MAX * 2 {
        return Err(beyond());
    }
    Ok(if is_earlier { -millis } else { millis })
}

/// The id of a hold, as a caller wrote it.
pub(super) fn hold_id(text: &str) -> Result<HoldId, Problem> {
    if (1..=HOLD_ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(HoldId::new(text));
    }
    Err(Problem::new(Code::BadId, format!("`{}` cannot be the id of a hold", shown(text))))
}

/// What is known of a hold that the caller may see.
pub(super) async fn look(door: &Door, caller: &Caller, id: &HoldId) -> Result<Found, Problem> {
    let found = match ask(door, id, Ask::Look { id: id.clone() }).await? {
        Told::Pending(view) => Found::Pending(view),
        Told::Ended(end) => Found::Ended(end),
        Told::Unknown => return Err(unknown(id)),
        other => return Err(not_understood(&other)),
    };
    let is_seen = caller.is_for_all_holds() || caller.require_holds_of(&found.topic_name(door)).is_ok();
    if is_seen { Ok(found) } else { Err(unknown(id)) }
}

/// Moves a hold: its due time and version then.
pub(super) async fn extend(
    door: &Door,
    caller: &Caller,
    id: &HoldId,
    extension: Extension,
) -> Result<(Timestamp, u64), Problem> {
    admit(door, caller, id).await?;
    let Extension { to, if_version, key } = extension;
    match ask(door, id, Ask::Extend { id: id.clone(), to, if_version, key }).await? {
        Told::Rescheduled { due, version } => Ok((due, version)),
        Told::OtherVersion { version, due } => {
            let detail = format!("hold `{id}` has version {version} and is due at {due}; it was not moved");
            Err(Problem::new(Code::VersionDiffers, detail).with("version", version).with("due", due.to_string()))
        }
        Told::TooFar => Err(Problem::new(Code::BadDuration, TOO_FAR)),
        other => Err(not_done(id, other)),
    }
}

pub(super) async fn withdraw(door: &Door, caller: &Caller, id: &HoldId) -> Result<(), Problem> {
    admit(door, caller, id).await?;
    match ask(door, id, Ask::Withdraw { id: id.clone() }).await? {
        Told::Withdrawn => Ok(()),
        other => Err(not_done(id, other)),
    }
}

/// Where a hold's message is that was fired on command.
#[derive(Debug)]
pub(super) struct FiredPlace {
    pub(super) at: Timestamp,
    pub(super) partition: u32,
    pub(super) offset: Option<u64>,
}

pub(super) async fn fire(door: &Door, caller: &Caller, id: &HoldId) -> Result<FiredPlace, Problem> {
    admit(door, caller, id).await?;
    match ask(door, id, Ask::Fire { id: id.clone() }).await? {
        Told::Fired { at, partition, offset } => Ok(FiredPlace { at, partition, offset }),
        other => Err(not_done(id, other)),
    }
}

/// Asks every shard, and answers in their order.
pub(super) async fn ask_all(door: &Door, ask: &Ask) -> Result<Vec<Told>, Problem> {
    let asked = (0..door.holds.partitions()).map(|shard| door.ports.holds.ask(shard, ask.clone()));
    Ok(futures_util::stream::iter(asked).buffered(SHARDS_AT_ONCE).try_collect().await?)
}

/// How many holds of a topic are pending.
pub(super) async fn count_pending(door: &Door, topic: TopicNumber) -> Result<u64, Problem> {
    let query = whimbrel_model::ports::CountQuery { topic: Some(topic), from: None, to: None, bucket: WIDEST_BUCKET };
    let mut count = 0;
    for told in ask_all(door, &Ask::Count(query)).await? {
        let Told::Counted(buckets) = told else { return Err(not_understood(&told)) };
        count += buckets.iter().map(|(_, count)| count).sum::<u64>();
    }
    Ok(count)
}

/// Few buckets, where only their sum is wanted.
const WIDEST_BUCKET: Duration = Duration::from_secs(366 * 86_400);

/// Takes back everything of a topic that is pending.
pub(super) async fn withdraw_topic(door: &Door, topic: TopicNumber) -> Result<u64, Problem> {
    let mut count = 0;
    for told in ask_all(door, &Ask::WithdrawTopic { topic }).await? {
        let Told::WithdrawnMany(withdrawn) = told else { return Err(not_understood(&told)) };
        count += withdrawn;
    }
    Ok(count)
}

/// The name of a topic that an ended hold was for; empty where the topic is gone.
pub(super) fn topic_name(door: &Door, number: TopicNumber) -> String {
    door.registry.by_number(number).map(|topic| topic.name.to_string()).unwrap_or_default()
}

/// Lets whoever may act on this hold pass. Nobody may where the system holds it for itself: a notice or another try would not come.
async fn admit(door: &Door, caller: &Caller, id: &HoldId) -> Result<(), Problem> {
    caller.require(Scope::Publish)?;
    if is_system_hold(id.as_str()) {
        let detail = format!("hold `{}` is the system's own: it is not moved, fired or taken back", shown(id.as_str()));
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if !caller.is_for_all_holds() {
        look(door, caller, id).await?;
    }
    Ok(())
}

async fn ask(door: &Door, id: &HoldId, ask: Ask) -> Result<Told, Problem> {
    Ok(door.ports.holds.ask(id.shard(door.holds.partitions()), ask).await?)
}

/// Why a command did not do what it was for.
fn not_done(id: &HoldId, told: Told) -> Problem {
    match told {
        Told::Unknown => unknown(id),
        Told::Ended(end) => over(id, &end),
        other => not_understood(&other),
    }
}

fn unknown(id: &HoldId) -> Problem {
    Problem::new(Code::UnknownHold, format!("there is no hold `{}`", shown(id.as_str())))
}

fn over(id: &HoldId, end: &HoldEnd) -> Problem {
    let (id, at) = (shown(id.as_str()), end.at.to_string());
    match &end.how {
        Ending::Fired { partition } => Problem::new(Code::AlreadyFired, format!("hold `{id}` fired at {at}"))
            .with("fired_at", at)
            .with("partition", *partition),
        Ending::Withdrawn => {
            Problem::new(Code::AlreadyWithdrawn, format!("hold `{id}` was withdrawn at {at}")).with("withdrawn_at", at)
        }
        Ending::Dead { reason } => Problem::new(Code::AlreadyDead, format!("hold `{id}` died at {at}: {reason}"))
            .with("died_at", at)
            .with("reason", &**reason),
    }
}

pub(super) fn not_understood(told: &Told) -> Problem {
    tracing::error!(?told, "an owner answered what it was not asked");
    Problem::new(Code::OutcomeUnknown, "the owner of the shard gave no answer that is understood")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_goes_in_either_direction() {
        for (text, millis) in [("10m", 600_000), ("-10m", -600_000), ("1500", 1500), ("-1500", -1500), ("0", 0)] {
            assert_eq!(signed_millis(text).unwrap(), millis, "{text}");
        }
        for text in ["", "-", "--1", "+1s", "soon", "9999w", "99999999999999999999"] {
            assert_eq!(signed_millis(text).unwrap_err().code(), Code::BadDuration, "{text}");
        }
    }

    #[test]
    fn an_extension_says_one_of_by_and_until() {
        let checked = |by, until| Extension::checked(by, until, None, None, Timestamp::from_millis(0));
        assert_eq!(checked(None, None).unwrap_err().code(), Code::BadParameter);
        assert_eq!(checked(Some("1s"), Some("1970-01-01T00:00:00Z")).unwrap_err().code(), Code::BadParameter);
        assert_eq!(checked(None, Some("1980-01-01T00:00:00Z")).unwrap_err().code(), Code::BadTime);
        let past = checked(None, Some("1960-01-01T00:00:00Z")).unwrap();
        assert!(matches!(past.to, NewDue::Until(_)), "a time in the past fires now");
    }
}
