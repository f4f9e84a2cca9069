//! `GET /v1/holds` and `GET /v1/holds/count`: what is held, over all shards. Each shard's owner answers for itself; here the answers
//! become one, in due order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use whimbrel_model::ports::{Ask, CountQuery, DueCursor, HoldQuery, HoldView, Told};
use whimbrel_model::{HoldEnd, HoldId, Timestamp, TopicNumber, parse_duration};

use super::answer::bounded_json_response;
use super::documents::{HoldBucketDocument, HoldCountDocument, HoldDocument, HoldListDocument, ProblemDocument};
use super::door::Door;
use super::hold_calls::{ask_all, hold_id, not_understood};
use super::holds::{ended_document, pending_document};
use super::keys::Caller;
use super::problem::{Code, Problem};
use super::query::{Query, shown, take_time};

/// Holds of one page.
const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1000;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// What a histogram is given in where nobody says: the first of these in which it has few enough buckets.
const BUCKETS: [Duration; 8] = [
    MINUTE,
    MINUTE.saturating_mul(5),
    MINUTE.saturating_mul(15),
    MINUTE.saturating_mul(60),
    MINUTE.saturating_mul(360),
    DAY,
    DAY.saturating_mul(7),
    DAY.saturating_mul(30),
];
/// Buckets of a histogram where nobody says how long they are, about.
const BUCKETS_WANTED: u128 = 100;
/// Buckets that an answer can have.
const BUCKETS_MAX: u128 = 10_000;

/// List holds in due order
///
/// Pending ones, or with `state=dead` those that could never be written. Where there is a `cursor`, there may be more.
#[utoipa::path(
    get, path = "/v1/holds", tag = "holds", operation_id = "list_holds",
    params(
        ("topic" = Option<String>, Query, description = "Only of this topic. A key that is for some topics only, or that lacks the scope `push`, names one"),
        ("from" = Option<String>, Query, description = "Due at this time or later"),
        ("to" = Option<String>, Query, description = "Due before this time"),
        ("state" = Option<String>, Query, description = "`held` (the default) or `dead`"),
        ("limit" = Option<usize>, Query, description = "At most so many: 1 to 1000, 100 where it is not given"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page with the same parameters"),
    ),
    responses(
        (status = 200, description = "The holds", body = HoldListDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `forbidden`, `bad_parameter`, `bad_time`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_holds(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let caller = door.keys.caller(request.headers())?;
    caller.require_looking()?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = take_topic(&door, &caller, &mut query).await?;
    let (from, to) = (take_time(&mut query, "from")?, take_time(&mut query, "to")?);
    let is_dead = match query.take("state")?.as_deref() {
        None | Some("held") => false,
        Some("dead") => true,
        Some(other) => {
            let detail = format!("`state` is `held` or `dead`, not `{}`", shown(other));
            return Err(Problem::new(Code::BadParameter, detail));
        }
    };
    let limit = query.take_parsed("limit", "a number")?.unwrap_or(LIST_DEFAULT);
    if !(1..=LIST_MAX).contains(&limit) {
        return Err(Problem::new(Code::BadParameter, format!("`limit` is 1 to {LIST_MAX}, not {limit}")));
    }
    let after =
        query.take("cursor")?.filter(|cursor| !cursor.is_empty()).map(|cursor| read_cursor(&cursor)).transpose()?;
    query.end()?;
    let wanted = HoldQuery { topic, from, to, after, limit };
    let page = if is_dead { dead_page(&door, wanted).await? } else { pending_page(&door, wanted).await? };
    let cursor = page.is_cut.then(|| page.holds.last().map(|(place, _)| write_cursor(place))).flatten();
    let holds = page.holds.into_iter().map(|(_, hold)| hold).collect();
    let document = HoldListDocument { holds, cursor };
    bounded_json_response(door.answers.begin(), serde_json::to_vec(&document).expect("a document is plain data"))
}

/// Holds of all shards in due order.
struct Page {
    holds: Vec<(DueCursor, HoldDocument)>,
    /// There may be more behind the last one.
    is_cut: bool,
}

impl Page {
    /// A shard that gave as many as it was asked for may have more.
    fn of(shards: Vec<Vec<(DueCursor, HoldDocument)>>, limit: usize) -> Self {
        let is_shard_cut = shards.iter().any(|shard| shard.len() >= limit);
        let mut holds = shards.concat();
        holds.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let is_cut = is_shard_cut || holds.len() > limit;
        holds.truncate(limit);
        Self { holds, is_cut }
    }
}

async fn pending_page(door: &Door, query: HoldQuery) -> Result<Page, Problem> {
    let limit = query.limit;
    let mut shards = Vec::new();
    for told in ask_all(door, &Ask::List(query)).await? {
        let Told::Listed(views) = told else { return Err(not_understood(&told)) };
        let placed = |view: &HoldView| (DueCursor { due: view.due, id: view.id.clone() }, pending_document(view));
        shards.push(views.iter().map(placed).collect());
    }
    Ok(Page::of(shards, limit))
}

async fn dead_page(door: &Door, query: HoldQuery) -> Result<Page, Problem> {
    let limit = query.limit;
    let mut shards = Vec::new();
    for told in ask_all(door, &Ask::Dead(query)).await? {
        let Told::ListedDead(dead) = told else { return Err(not_understood(&told)) };
        let placed =
            |(id, end): &(HoldId, HoldEnd)| (DueCursor { due: end.due, id: id.clone() }, ended_document(door, id, end));
        shards.push(dead.iter().map(placed).collect());
    }
    Ok(Page::of(shards, limit))
}

/// A cursor is nobody's business but ours: a place in due order, in base64.
fn write_cursor(place: &DueCursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}:{}", place.due.as_millis(), place.id))
}

fn read_cursor(cursor: &str) -> Result<DueCursor, Problem> {
    let wrong = || Problem::new(Code::BadParameter, format!("`{}` is not a cursor of a list of holds", shown(cursor)));
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    let (due, id) = text.split_once(':').ok_or_else(wrong)?;
    let due = Timestamp::from_millis(due.parse().map_err(|_| wrong())?);
    Ok(DueCursor { due, id: hold_id(id).map_err(|_| wrong())? })
}

/// The topic that was asked about, where one was.
async fn take_topic(door: &Door, caller: &Caller, query: &mut Query<'_>) -> Result<Option<TopicNumber>, Problem> {
    let Some(name) = query.take("topic")? else {
        // A page of all topics would tell, by its cursor or by how short it is, what is in those that the key is not for.
        if caller.is_restricted() {
            return Err(Problem::new(Code::Forbidden, "this key is for some topics only: name one of them"));
        }
        if !caller.is_for_all_holds() {
            let detail = "held pushes are among all, and this key lacks the scope `push`: name a topic";
            return Err(Problem::new(Code::Forbidden, detail));
        }
        return Ok(None);
    };
    caller.require_holds_of(&name)?;
    Ok(Some(door.registry.find(&name).await?.number()))
}

/// Count what is held, and when it comes due
///
/// Counts are kept by the minute: `from` and `to` are widened to whole ones.
#[utoipa::path(
    get, path = "/v1/holds/count", tag = "holds", operation_id = "count_holds",
    params(
        ("topic" = Option<String>, Query, description = "Only of this topic. A key that is for some topics only, or that lacks the scope `push`, names one"),
        ("from" = Option<String>, Query, description = "Due at this time or later"),
        ("to" = Option<String>, Query, description = "Due before this time"),
        ("bucket" = Option<String>, Query, description = "The length of the buckets: a duration of whole minutes. Where it is not given, there are about a hundred at most"),
    ),
    responses(
        (status = 200, description = "How many, and when", body = HoldCountDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `forbidden`, `bad_parameter`, `bad_time`, `bad_duration`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn count_holds(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let caller = door.keys.caller(request.headers())?;
    caller.require_looking()?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = take_topic(&door, &caller, &mut query).await?;
    let (from, to) = (take_time(&mut query, "from")?, take_time(&mut query, "to")?);
    let bucket = query.take("bucket")?.map(|text| read_bucket(&text)).transpose()?;
    query.end()?;
    let (bucket, counts) = histogram(&door, CountQuery { topic, from, to, bucket: DAY }, bucket).await?;
    let length_ms = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX);
    let buckets = counts.iter().map(|(from, count)| HoldBucketDocument {
        from: from.to_string(),
        to: Timestamp::from_millis(from.as_millis().saturating_add(length_ms)).to_string(),
        count: *count,
    });
    let document = HoldCountDocument { count: counts.values().sum(), buckets: buckets.collect() };
    bounded_json_response(door.answers.begin(), serde_json::to_vec(&document).expect("a document is plain data"))
}

fn read_bucket(text: &str) -> Result<Duration, Problem> {
    let bucket = parse_duration(text).map_err(|error| Problem::new(Code::BadDuration, error.to_string()))?;
    let is_whole = bucket >= MINUTE && bucket.as_millis() % MINUTE.as_millis() == 0;
    if is_whole { Ok(bucket) } else { Err(Problem::new(Code::BadDuration, "a bucket is of whole minutes")) }
}

/// Counts in buckets of the wanted length, or of one that suits what there is. The days are asked for first: they are few, and say over
/// what time the rest is spread.
async fn histogram(
    door: &Door,
    by_day: CountQuery,
    wanted: Option<Duration>,
) -> Result<(Duration, BTreeMap<Timestamp, u64>), Problem> {
    let days = counted(door, by_day.clone()).await?;
    let span = span_of(&days, by_day.from, by_day.to);
    let bucket = wanted.unwrap_or_else(|| suiting_bucket(span));
    if span.as_millis() / bucket.as_millis() > BUCKETS_MAX {
        let detail = "so many buckets cannot be answered: take longer ones, or a narrower time";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    let counts = if bucket == DAY { days } else { counted(door, CountQuery { bucket, ..by_day }).await? };
    Ok((bucket, counts))
}

/// From the first to the end of the last day that has any, within what was asked about.
fn span_of(days: &BTreeMap<Timestamp, u64>, from: Option<Timestamp>, to: Option<Timestamp>) -> Duration {
    let (Some((first, _)), Some((last, _))) = (days.first_key_value(), days.last_key_value()) else {
        return Duration::ZERO;
    };
    let first = from.map_or(*first, |from| from.max(*first)).as_millis();
    let end = last.as_millis().saturating_add(DAY.as_millis() as i64);
    let end = to.map_or(end, |to| to.as_millis().min(end));
    Duration::from_millis(u64::try_from(end.saturating_sub(first)).unwrap_or(0))
}

fn suiting_bucket(span: Duration) -> Duration {
    let suits = |bucket: &&Duration| span.as_millis() / bucket.as_millis() <= BUCKETS_WANTED;
    *BUCKETS.iter().find(suits).unwrap_or(&BUCKETS[BUCKETS.len() - 1])
}

async fn counted(door: &Door, query: CountQuery) -> Result<BTreeMap<Timestamp, u64>, Problem> {
    let mut counts = BTreeMap::new();
    for told in ask_all(door, &Ask::Count(query)).await? {
        let Told::Counted(buckets) = told else { return Err(not_understood(&told)) };
        for (start, count) in buckets {
            *counts.entry(start).or_default() += count;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_suits_the_time_that_it_divides() {
        assert_eq!(suiting_bucket(Duration::ZERO), MINUTE);
        assert_eq!(suiting_bucket(MINUTE * 100), MINUTE);
        assert_eq!(suiting_bucket(DAY), MINUTE * 15);
        assert_eq!(suiting_bucket(DAY * 730), DAY * 30);
        assert_eq!(suiting_bucket(DAY * 36_500), DAY * 30);
    }

    #[test]
    fn what_is_asked_about_narrows_the_span() {
        let at = |minutes: i64| Timestamp::from_millis(minutes * 60_000);
        let days = BTreeMap::from([(at(0), 1), (at(1440), 1)]);
        assert_eq!(span_of(&days, None, None), DAY * 2);
        assert_eq!(span_of(&days, Some(at(10)), Some(at(15))), MINUTE * 5);
        assert_eq!(span_of(&days, Some(at(100_000)), None), Duration::ZERO);
        assert_eq!(span_of(&BTreeMap::new(), None, None), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_cursor_is_read_as_it_was_written(due: i64, id in "[A-Za-z0-9_:-]{1,128}") {
            let place = DueCursor { due: Timestamp::from_millis(due), id: HoldId::new(&id) };
            prop_assert_eq!(read_cursor(&write_cursor(&place)).unwrap(), place);
        }

        #[test]
        fn what_is_no_cursor_is_refused(text in ".{0,40}") {
            let _ = read_cursor(&text);
        }
    }
}
