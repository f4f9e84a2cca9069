//! `GET /v1/push/dead-letters` and `POST /v1/push/redrive`: lists pushes that could not be processed, and pushes them again.
//!
//! They are records of `_dead._push`. That topic also records redrives, so that a list leaves them out. Both are found by scanning the
//! topic, which retention keeps small.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use whimbrel_api::dead_letters::{Redrive, Redriven};
use whimbrel_api::people::{DeadPushInfo, DeadPushList};
use whimbrel_api::problem::Problem;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::Entry;
use whimbrel_model::push::{
    PUSH_DEAD_TOPIC, PUSH_TOPIC, PushFailure, PushTask, known_again, redriven_of, redriven_record,
};
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::{fields_of, push_topic};
use crate::accept::cancel_safe::CancelSafe;
use crate::accept::{append_one, append_problem};
use crate::answer::{bounded_json_response, json_response, to_json};
use crate::api_state::ApiState;
use crate::endpoints::dead_letters::{list_page, selected_ids};
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::Query;
use whimbrel_catalogue::topics::Placement;
use whimbrel_model::log_walk::LogWalk;

/// The maximum number of records that one request scans.
const SCAN_RECORDS_MAX: usize = 1_000_000;
/// The number of pushes in one append of a redrive.
const REDRIVE_AT_ONCE: usize = 256;
/// The maximum number of users that are listed for a push to many.
const UIDS_SHOWN: usize = 100;

/// List dead pushes
#[utoipa::path(
    get, path = "/v1/push/dead-letters", tag = "people", operation_id = "list_dead_pushes",
    params(
        ("limit" = Option<usize>, Query, description = "The maximum number of pushes: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead pushes", body = DeadPushList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_dead_pushes(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    let partition = dead_partition(&api)?;
    let redriven = redriven_from(&api, partition, from).await?;
    let mut dead_letters = Vec::new();
    let mut cursor = None;
    walk(&api, partition, from, |letter| {
        if redriven.contains(&letter.at) {
            return true;
        }
        if dead_letters.len() == limit {
            cursor = Some(letter.at.to_string());
            return false;
        }
        dead_letters.push(document_of(letter));
        true
    })
    .await?;
    bounded_json_response(api.answers.begin(), to_json(&DeadPushList { dead_letters, cursor }))
}

/// Redrive dead pushes
///
/// Appends each to `_push` again, with the current time. A device that has seen it drops it as a repeat.
#[utoipa::path(
    post, path = "/v1/push/redrive", tag = "people", operation_id = "redrive_pushes",
    request_body(content = Redrive, content_type = "application/json"),
    responses(
        (status = 200, description = "The number of redriven pushes", body = Redriven, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`, `log_closed`, `outcome_unknown`: repeat the request. Pushes that were already redriven are left out", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn redrive_pushes(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let ids = selected_ids(fields_of(&api, &parts, body).await?)?;
    let answer = CancelSafe::new(async move { redrive(&api, ids).await }).await?;
    Ok(json_response(StatusCode::OK, to_json(&answer)))
}

/// A dead push as read from the topic.
struct DeadPush {
    /// Its offset in the topic of dead pushes.
    at: u64,
    id: String,
    dead: PushFailure,
    push: Record,
}

async fn redrive(api: &ApiState, ids: Option<Vec<String>>) -> Result<Redriven, ApiProblem> {
    let partition = dead_partition(api)?;
    let redriven = redriven_from(api, partition, 0).await?;
    let mut wanted: Option<HashMap<String, bool>> =
        ids.as_ref().map(|ids| ids.iter().map(|id| (id.clone(), false)).collect());
    let (mut count, mut from) = (0, 0);
    loop {
        let mut letters = Vec::new();
        let mut next = None;
        walk(api, partition, from, |letter| {
            if letters.len() == REDRIVE_AT_ONCE {
                next = Some(letter.at);
                return false;
            }
            let is_wanted = match &mut wanted {
                None => true,
                Some(wanted) => wanted.get_mut(&letter.id).is_some_and(|found| {
                    *found |= !redriven.contains(&letter.at);
                    true
                }),
            };
            if is_wanted && !redriven.contains(&letter.at) {
                letters.push(letter);
            }
            true
        })
        .await?;
        count += letters.len() as u64;
        append_again(api, partition, letters).await?;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    let found = wanted.unwrap_or_default();
    let unknown = ids.unwrap_or_default().into_iter().filter(|id| !found.get(id).copied().unwrap_or(false)).collect();
    Ok(Redriven { redriven: count, unknown })
}

/// Appends pushes to `_push` again, and then records that. A crash between the two appends causes a repeat, never a loss. The users' owners
/// drop the repeat by the push's id, whether its sender chose that id or not.
async fn append_again(api: &ApiState, dead_partition: PartitionId, letters: Vec<DeadPush>) -> Result<(), ApiProblem> {
    if letters.is_empty() {
        return Ok(());
    }
    push_topic(api)?;
    let pass = api.registry.enter(PUSH_TOPIC, Placement::Free).await?;
    let offsets: Vec<u64> = letters.iter().map(|letter| letter.at).collect();
    let entries = letters
        .into_iter()
        .map(|letter| Entry { partition: pass.place(letter.push.key.as_deref()), record: known_again(letter.push) });
    let outcome = api.ports.log.append(entries.collect()).await;
    let taken: Vec<u64> = offsets.iter().zip(&outcome).filter(|(_, each)| each.is_ok()).map(|(at, _)| *at).collect();
    let failed = outcome.into_iter().find_map(Result::err);
    drop(pass);
    if !taken.is_empty() {
        let note = Entry { partition: dead_partition, record: redriven_record(&taken, api.ports.clock.now()) };
        append_one(&*api.ports.log, note, PUSH_DEAD_TOPIC).await?;
    }
    failed.map_or(Ok(()), |error| Err(append_problem(error, PUSH_TOPIC)))
}

fn dead_partition(api: &ApiState) -> Result<PartitionId, ApiProblem> {
    let missing = || ApiProblem::new(Code::Unavailable, format!("topic `{PUSH_DEAD_TOPIC}` does not exist yet"));
    Ok(api.registry.get(PUSH_DEAD_TOPIC).ok_or_else(missing)?.partition(0))
}

/// The offsets of redriven pushes, from redrive records at or after `from`. A redrive record always follows the pushes it names.
async fn redriven_from(api: &ApiState, partition: PartitionId, from: u64) -> Result<HashSet<u64>, ApiProblem> {
    let mut redriven = HashSet::new();
    each_record(api, partition, from, |_, record| {
        redriven.extend(redriven_of(record).unwrap_or_default());
        true
    })
    .await?;
    Ok(redriven)
}

/// Passes the dead pushes from an offset on to `each`, until the end or until it returns `false`.
async fn walk(
    api: &ApiState,
    partition: PartitionId,
    from: u64,
    mut each: impl FnMut(DeadPush) -> bool,
) -> Result<(), ApiProblem> {
    let now = api.ports.clock.now();
    each_record(api, partition, from, |at, record| {
        let Some((dead, push)) = PushFailure::of(record, now) else { return true };
        let id = push.headers.get_str(HEADER_ID).unwrap_or_default().to_owned();
        each(DeadPush { at, id, dead, push })
    })
    .await
}

async fn each_record(
    api: &ApiState,
    partition: PartitionId,
    from: u64,
    mut each: impl FnMut(u64, &Record) -> bool,
) -> Result<(), ApiProblem> {
    let log = &api.ports.log;
    let end = log.bounds(partition).await?.next;
    let mut walk = LogWalk::new(&**log, partition, from, end);
    let mut looked_at = 0;
    while let Some(records) = walk.step(usize::MAX).await? {
        looked_at += records.len();
        if looked_at > SCAN_RECORDS_MAX {
            let detail = format!("`{PUSH_DEAD_TOPIC}` has more than {SCAN_RECORDS_MAX} records to scan");
            return Err(ApiProblem::new(Code::Unavailable, detail));
        }
        for stored in &records {
            if !each(stored.offset, &stored.record) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn document_of(letter: DeadPush) -> DeadPushInfo {
    let uids = match PushTask::of(&letter.push.headers) {
        Ok(PushTask::Message(message)) => message.uids,
        Ok(PushTask::NoticeDue(due)) => due.uids,
        Ok(PushTask::Retry(retry)) => vec![retry.uid],
        Ok(PushTask::Kick(kick)) => vec![kick.uid],
        Ok(PushTask::Wipe { uid }) => vec![uid],
        // An undecodable push still belongs to a user: its key is the uid.
        Err(_) => letter.push.key.iter().filter_map(|key| String::from_utf8(key.to_vec()).ok()).collect(),
    };
    DeadPushInfo {
        id: letter.id,
        users: uids.len() as u64,
        uids: uids.into_iter().filter(|uid| Uid::new(uid).is_ok()).take(UIDS_SHOWN).collect(),
        reason: letter.dead.reason,
        died_at: Timestamp::from_millis(letter.dead.died_at_ms).to_string(),
        partition: letter.dead.partition,
        offset: letter.dead.offset,
        dead_offset: letter.at,
    }
}
