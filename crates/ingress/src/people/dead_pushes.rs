//! `GET /v1/push/dead-letters` and `POST /v1/push/redrive`: pushes that could not be handled, and another try at them.
//!
//! They are records of `_dead._push`. What was redriven is noted there too, so that a listing leaves it out: both are found by walking the
//! topic, which retention keeps small.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Entry, LogError};
use whimbrel_model::push::{
    PUSH_DEAD_TOPIC, PUSH_TOPIC, PushDead, PushTask, known_again, redriven_of, redriven_record,
};
use whimbrel_model::record::HEADER_ID;
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::super::accept::append_problem;
use super::super::answer::{bounded_json_response, json_response};
use super::super::dead_letters::{REDRIVE_IDS_MAX, RedriveAnswer, RedriveBody, list_page, wanted_ids};
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::keys::Scope;
use super::super::problem::{Code, Problem};
use super::super::query::Query;
use super::super::subscriptions::to_json;
use super::super::undisturbed::Undisturbed;
use super::documents::{DeadPushDocument, DeadPushList};
use super::{fields_of, push_topic};
use whimbrel_catalogue::topics::Placement;
use whimbrel_model::log_walk::LogWalk;

/// Records of the topic that one call looks at.
const LOOK_RECORDS_MAX: usize = 1_000_000;
/// Pushes that are put back with one append.
const REDRIVE_AT_ONCE: usize = 256;
/// Users that are named of a push to many.
const UIDS_SHOWN: usize = 100;

/// List dead pushes
#[utoipa::path(
    get, path = "/v1/push/dead-letters", tag = "people", operation_id = "list_dead_pushes",
    params(
        ("limit" = Option<usize>, Query, description = "At most so many: 1 to 1000, 100 where it is not given"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead pushes", body = DeadPushList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn list_dead_pushes(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    let partition = dead_partition(&door)?;
    let redriven = redriven_from(&door, partition, from).await?;
    let mut dead_letters = Vec::new();
    let mut cursor = None;
    walk(&door, partition, from, |letter| {
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
    bounded_json_response(door.answers.begin(), to_json(&DeadPushList { dead_letters, cursor }))
}

/// Push dead pushes anew
///
/// Each is put into `_push` again, as of now. A device that has seen it leaves it out.
#[utoipa::path(
    post, path = "/v1/push/redrive", tag = "people", operation_id = "redrive_pushes",
    request_body(content = RedriveBody, content_type = "application/json"),
    responses(
        (status = 200, description = "How many", body = RedriveAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `bad_json`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`, `log_closed`, `outcome_unknown`: repeat it; what was put back is left out", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn redrive_pushes(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let mut fields = fields_of(&door, &parts, body).await?;
    let (ids, all) = (fields.texts("ids", REDRIVE_IDS_MAX)?, fields.flag("all")?);
    fields.end()?;
    let ids = wanted_ids(ids, all)?;
    let answer = Undisturbed::new(async move { redrive(&door, ids).await }).await?;
    Ok(json_response(StatusCode::OK, to_json(&answer)))
}

/// A dead push, as the walk finds it.
struct Letter {
    /// Its offset in the topic of dead pushes.
    at: u64,
    id: String,
    dead: PushDead,
    push: Record,
}

async fn redrive(door: &Door, ids: Option<Vec<String>>) -> Result<RedriveAnswer, Problem> {
    let partition = dead_partition(door)?;
    let redriven = redriven_from(door, partition, 0).await?;
    let mut wanted: Option<HashMap<String, bool>> =
        ids.as_ref().map(|ids| ids.iter().map(|id| (id.clone(), false)).collect());
    let (mut count, mut from) = (0, 0);
    loop {
        let mut letters = Vec::new();
        let mut next = None;
        walk(door, partition, from, |letter| {
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
        put_back(door, partition, letters).await?;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    let found = wanted.unwrap_or_default();
    let unknown = ids.unwrap_or_default().into_iter().filter(|id| !found.get(id).copied().unwrap_or(false)).collect();
    Ok(RedriveAnswer { redriven: count, unknown })
}

/// Puts pushes into `_push` again, and notes that. In this order: a crash between the two costs a repeat, which the users' owners leave
/// out by the push's id, whether its sender brought that or not, and never a push.
async fn put_back(door: &Door, dead_partition: PartitionId, letters: Vec<Letter>) -> Result<(), Problem> {
    if letters.is_empty() {
        return Ok(());
    }
    push_topic(door)?;
    let pass = door.registry.enter(PUSH_TOPIC, Placement::Free).await?;
    let offsets: Vec<u64> = letters.iter().map(|letter| letter.at).collect();
    let entries = letters
        .into_iter()
        .map(|letter| Entry { partition: pass.place(letter.push.key.as_deref()), record: known_again(letter.push) });
    let outcome = door.ports.log.append(entries.collect()).await;
    let taken: Vec<u64> = offsets.iter().zip(&outcome).filter(|(_, each)| each.is_ok()).map(|(at, _)| *at).collect();
    let failed = outcome.into_iter().find_map(Result::err);
    drop(pass);
    if !taken.is_empty() {
        let note = Entry { partition: dead_partition, record: redriven_record(&taken, door.ports.clock.now()) };
        let noted = door.ports.log.append(vec![note]).await.into_iter().next();
        noted.unwrap_or_else(no_answer).map_err(|error| append_problem(error, PUSH_DEAD_TOPIC))?;
    }
    failed.map_or(Ok(()), |error| Err(append_problem(error, PUSH_TOPIC)))
}

fn no_answer() -> Result<u64, LogError> {
    Err(LogError::Unknown("the log gave no answer".to_owned()))
}

fn dead_partition(door: &Door) -> Result<PartitionId, Problem> {
    let missing = || Problem::new(Code::Unavailable, format!("the topic `{PUSH_DEAD_TOPIC}` is not there yet"));
    Ok(door.registry.get(PUSH_DEAD_TOPIC).ok_or_else(missing)?.partition(0))
}

/// The places of what was redriven, as far as it is noted at or behind an offset: a note lies behind what it is about.
async fn redriven_from(door: &Door, partition: PartitionId, from: u64) -> Result<HashSet<u64>, Problem> {
    let mut redriven = HashSet::new();
    each_record(door, partition, from, |_, record| {
        redriven.extend(redriven_of(record).unwrap_or_default());
        true
    })
    .await?;
    Ok(redriven)
}

/// Hands out the dead pushes from an offset on, until there are no more or `false` is answered.
async fn walk(
    door: &Door,
    partition: PartitionId,
    from: u64,
    mut each: impl FnMut(Letter) -> bool,
) -> Result<(), Problem> {
    let now = door.ports.clock.now();
    each_record(door, partition, from, |at, record| {
        let Some((dead, push)) = PushDead::of(record, now) else { return true };
        let id = push.headers.get_str(HEADER_ID).unwrap_or_default().to_owned();
        each(Letter { at, id, dead, push })
    })
    .await
}

async fn each_record(
    door: &Door,
    partition: PartitionId,
    from: u64,
    mut each: impl FnMut(u64, &Record) -> bool,
) -> Result<(), Problem> {
    let log = &door.ports.log;
    let end = log.bounds(partition).await?.next;
    let mut walk = LogWalk::new(&**log, partition, from, end);
    let mut looked_at = 0;
    while let Some(records) = walk.step(usize::MAX).await? {
        looked_at += records.len();
        if looked_at > LOOK_RECORDS_MAX {
            let detail = format!("`{PUSH_DEAD_TOPIC}` has more than {LOOK_RECORDS_MAX} records to look through");
            return Err(Problem::new(Code::Unavailable, detail));
        }
        for stored in &records {
            if !each(stored.offset, &stored.record) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn document_of(letter: Letter) -> DeadPushDocument {
    let uids = match PushTask::of(&letter.push.headers) {
        Ok(PushTask::Message(message)) => message.uids,
        Ok(PushTask::NoticeDue(due)) => due.uids,
        Ok(PushTask::Retry(retry)) => vec![retry.uid],
        Ok(PushTask::Kick(kick)) => vec![kick.uid],
        Ok(PushTask::Wipe { uid }) => vec![uid],
        // What cannot be read is still somebody's: its key says whose.
        Err(_) => letter
            .push
            .key
            .as_ref()
            .and_then(|key| std::str::from_utf8(key).ok())
            .map(str::to_owned)
            .into_iter()
            .collect(),
    };
    DeadPushDocument {
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
