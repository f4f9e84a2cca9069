//! Requests about holds, shared by HTTP, gRPC, and the search for a message by its id. The owner of the shard decides; its reply becomes
//! the answer or problem of the caller.
//!
//! A key must not reveal holds of topics that it does not cover, nor held pushes without the scope `push`. Commands of such a key therefore
//! begin with a lookup.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use whimbrel_model::hold::HOLD_ID_MAX_BYTES;
use whimbrel_model::ports::{CountQuery, HoldReply, HoldRequest, HoldView, NewDueTime};
use whimbrel_model::push::is_system_hold;
use whimbrel_model::{HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber, parse_duration};

use crate::accept::draft::{DELAY_MAX, PublisherId, is_too_far};
use crate::api_state::ApiState;
use crate::keys::{Caller, Scope};
use crate::problem::{ApiProblem, Code};
use crate::query::shown;

/// The maximum number of shards that are asked concurrently.
const SHARDS_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(crate) enum HoldLookup {
    Pending(HoldView),
    Ended(HoldEnd),
}

impl HoldLookup {
    /// Empty if the topic was deleted.
    pub(crate) fn topic_name(&self, api: &ApiState) -> Arc<str> {
        match self {
            Self::Pending(view) => Arc::clone(&view.topic_name),
            Self::Ended(end) => topic_name(api, end.topic).into(),
        }
    }
}

/// A change of a hold's due time, with its conditions.
#[derive(Debug)]
pub(crate) struct DueChange {
    pub(crate) to: NewDueTime,
    pub(crate) if_version: Option<u64>,
    pub(crate) key: Option<Box<str>>,
}

impl DueChange {
    pub(crate) fn checked(
        by: Option<&str>,
        until: Option<&str>,
        if_version: Option<u64>,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, ApiProblem> {
        let to = match (by, until) {
            (Some(by), None) => NewDueTime::By(signed_millis(by)?),
            (None, Some(until)) => {
                let until = Timestamp::parse_no_earlier(until)
                    .map_err(|error| ApiProblem::new(Code::BadTime, error.to_string()))?;
                if is_too_far(until, now) {
                    return Err(ApiProblem::new(Code::BadTime, TOO_FAR));
                }
                NewDueTime::Until(until)
            }
            _ => return Err(ApiProblem::new(Code::BadParameter, "set exactly one of `by` and `until`")),
        };
        let key = PublisherId::checked(None, key)?.map(|own_id| own_id.text);
        Ok(Self { to, if_version, key })
    }
}

const TOO_FAR: &str = "the due time is more than two years ahead, which is the limit";

/// Parses `10m`, `-10m`, or milliseconds with an optional minus sign.
fn signed_millis(text: &str) -> Result<i64, ApiProblem> {
    let (size, is_earlier) = text.strip_prefix('-').map_or((text, false), |size| (size, true));
    let size = parse_duration(size).map_err(|error| ApiProblem::new(Code::BadDuration, error.to_string()))?;
    let beyond = || ApiProblem::new(Code::BadDuration, TOO_FAR);
    let millis = i64::try_from(size.as_millis()).map_err(|_| beyond())?;
    if size > DELAY_MAX * 2 {
        return Err(beyond());
    }
    Ok(if is_earlier { -millis } else { millis })
}

/// Validates the id of a hold.
pub(crate) fn hold_id(text: &str) -> Result<HoldId, ApiProblem> {
    if (1..=HOLD_ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(HoldId::new(text));
    }
    Err(ApiProblem::new(Code::BadId, format!("`{}` is not a valid hold id", shown(text))))
}

/// Looks up a hold that the caller may see.
pub(crate) async fn look_up(api: &ApiState, caller: &Caller, id: &HoldId) -> Result<HoldLookup, ApiProblem> {
    let found = match ask(api, id, HoldRequest::Look { id: id.clone() }).await? {
        HoldReply::Pending(view) => HoldLookup::Pending(view),
        HoldReply::Ended(end) => HoldLookup::Ended(end),
        HoldReply::Unknown => return Err(unknown(id)),
        other => return Err(wrong_reply(&other)),
    };
    let is_visible = caller.is_for_all_holds() || caller.require_holds_of(&found.topic_name(api)).is_ok();
    if is_visible { Ok(found) } else { Err(unknown(id)) }
}

/// Changes the due time of a hold, and returns its new due time and version.
pub(crate) async fn extend(
    api: &ApiState,
    caller: &Caller,
    id: &HoldId,
    extension: DueChange,
) -> Result<(Timestamp, u64), ApiProblem> {
    admit(api, caller, id).await?;
    let DueChange { to, if_version, key } = extension;
    match ask(api, id, HoldRequest::Extend { id: id.clone(), to, if_version, key }).await? {
        HoldReply::Rescheduled { due, version } => Ok((due, version)),
        HoldReply::OtherVersion { version, due } => {
            let detail = format!("hold `{id}` has version {version} and is due at {due}; its due time was not changed");
            Err(ApiProblem::new(Code::VersionDiffers, detail).with("version", version).with("due", due.to_string()))
        }
        HoldReply::TooFar => Err(ApiProblem::new(Code::BadDuration, TOO_FAR)),
        other => Err(command_problem(id, other)),
    }
}

pub(crate) async fn withdraw(api: &ApiState, caller: &Caller, id: &HoldId) -> Result<(), ApiProblem> {
    admit(api, caller, id).await?;
    match ask(api, id, HoldRequest::Withdraw { id: id.clone() }).await? {
        HoldReply::Withdrawn => Ok(()),
        other => Err(command_problem(id, other)),
    }
}

/// The position of the message of a hold that was fired by command.
#[derive(Debug)]
pub(crate) struct FiredPosition {
    pub(crate) at: Timestamp,
    pub(crate) partition: u32,
    pub(crate) offset: Option<u64>,
}

pub(crate) async fn fire(api: &ApiState, caller: &Caller, id: &HoldId) -> Result<FiredPosition, ApiProblem> {
    admit(api, caller, id).await?;
    match ask(api, id, HoldRequest::Fire { id: id.clone() }).await? {
        HoldReply::Fired { at, partition, offset } => Ok(FiredPosition { at, partition, offset }),
        other => Err(command_problem(id, other)),
    }
}

/// Asks every shard. The replies are in shard order.
pub(crate) async fn ask_all(api: &ApiState, ask: &HoldRequest) -> Result<Vec<HoldReply>, ApiProblem> {
    let asked = (0..api.holds.partitions()).map(|shard| api.ports.holds.ask(shard, ask.clone()));
    Ok(futures_util::stream::iter(asked).buffered(SHARDS_AT_ONCE).try_collect().await?)
}

/// The number of pending holds of a topic.
pub(crate) async fn count_pending(api: &ApiState, topic: TopicNumber) -> Result<u64, ApiProblem> {
    let query = CountQuery { topic: Some(topic), from: None, to: None, bucket: WIDEST_BUCKET };
    Ok(count(api, query).await?.values().sum())
}

/// The number of pending holds of all shards by the start of their bucket.
pub(crate) async fn count(api: &ApiState, query: CountQuery) -> Result<BTreeMap<Timestamp, u64>, ApiProblem> {
    let mut counts = BTreeMap::new();
    for told in ask_all(api, &HoldRequest::Count(query)).await? {
        let HoldReply::Counted(buckets) = told else { return Err(wrong_reply(&told)) };
        for (start, count) in buckets {
            *counts.entry(start).or_default() += count;
        }
    }
    Ok(counts)
}

/// A wide bucket, because only the sum is needed.
const WIDEST_BUCKET: Duration = Duration::from_secs(366 * 86_400);

/// Withdraws all pending holds of a topic.
pub(crate) async fn withdraw_topic(api: &ApiState, topic: TopicNumber) -> Result<u64, ApiProblem> {
    let mut count = 0;
    for told in ask_all(api, &HoldRequest::WithdrawTopic { topic }).await? {
        let HoldReply::WithdrawnMany(withdrawn) = told else { return Err(wrong_reply(&told)) };
        count += withdrawn;
    }
    Ok(count)
}

/// The name of the topic of an ended hold; empty if the topic was deleted.
pub(crate) fn topic_name(api: &ApiState, number: TopicNumber) -> String {
    api.registry.by_number(number).map(|topic| topic.name.to_string()).unwrap_or_default()
}

/// Authorizes a command on a hold. System holds are always refused, because they carry notifications and retries.
async fn admit(api: &ApiState, caller: &Caller, id: &HoldId) -> Result<(), ApiProblem> {
    caller.require(Scope::Publish)?;
    if is_system_hold(id.as_str()) {
        let detail = format!("`{}` is a system hold: it cannot be extended, fired or withdrawn", shown(id.as_str()));
        return Err(ApiProblem::new(Code::Forbidden, detail));
    }
    if !caller.is_for_all_holds() {
        look_up(api, caller, id).await?;
    }
    Ok(())
}

async fn ask(api: &ApiState, id: &HoldId, ask: HoldRequest) -> Result<HoldReply, ApiProblem> {
    Ok(api.ports.holds.ask(id.shard(api.holds.partitions()), ask).await?)
}

/// The problem for a command that had no effect.
fn command_problem(id: &HoldId, told: HoldReply) -> ApiProblem {
    match told {
        HoldReply::Unknown => unknown(id),
        HoldReply::Ended(end) => ended_problem(id, &end),
        other => wrong_reply(&other),
    }
}

fn unknown(id: &HoldId) -> ApiProblem {
    ApiProblem::new(Code::UnknownHold, format!("hold `{}` does not exist", shown(id.as_str())))
}

fn ended_problem(id: &HoldId, end: &HoldEnd) -> ApiProblem {
    let (id, at) = (shown(id.as_str()), end.at.to_string());
    match &end.how {
        HoldEndKind::Fired { partition } => ApiProblem::new(Code::AlreadyFired, format!("hold `{id}` fired at {at}"))
            .with("fired_at", at)
            .with("partition", *partition),
        HoldEndKind::Withdrawn => ApiProblem::new(Code::AlreadyWithdrawn, format!("hold `{id}` was withdrawn at {at}"))
            .with("withdrawn_at", at),
        HoldEndKind::Dead { reason } => ApiProblem::new(
            Code::AlreadyDead,
            format!("hold `{id}` ended as dead at {at}, because its message could not be appended: {reason}"),
        )
        .with("died_at", at)
        .with("reason", &**reason),
    }
}

pub(crate) fn wrong_reply(told: &HoldReply) -> ApiProblem {
    tracing::error!(?told, "an owner sent a reply of the wrong kind");
    ApiProblem::new(
        Code::OutcomeUnknown,
        "the owner of the shard sent an unexpected reply; read the hold before you retry",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_can_be_negative() {
        for (text, millis) in [("10m", 600_000), ("-10m", -600_000), ("1500", 1500), ("-1500", -1500), ("0", 0)] {
            assert_eq!(signed_millis(text).unwrap(), millis, "{text}");
        }
        for text in ["", "-", "--1", "+1s", "soon", "9999w", "99999999999999999999"] {
            assert_eq!(signed_millis(text).unwrap_err().code(), Code::BadDuration, "{text}");
        }
    }

    #[test]
    fn an_extension_has_exactly_one_of_by_and_until() {
        let checked = |by, until| DueChange::checked(by, until, None, None, Timestamp::from_millis(0));
        assert_eq!(checked(None, None).unwrap_err().code(), Code::BadParameter);
        assert_eq!(checked(Some("1s"), Some("1970-01-01T00:00:00Z")).unwrap_err().code(), Code::BadParameter);
        assert_eq!(checked(None, Some("1980-01-01T00:00:00Z")).unwrap_err().code(), Code::BadTime);
        let past = checked(None, Some("1960-01-01T00:00:00Z")).unwrap();
        assert!(matches!(past.to, NewDueTime::Until(_)), "a past time fires the hold now");
    }
}
