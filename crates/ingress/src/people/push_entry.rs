//! Validates one push, and turns it into drafts: one for each partition of its users.
//!
//! The parser borrows from the entry's bytes. Kept bytes are copied once, into a buffer that the whole batch shares. All drafts of a push
//! share its payload.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest as Crc};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use whimbrel_model::people::{Platform, check_uid};
use whimbrel_model::push::{COLLAPSE_KEY_MAX_BYTES, NOTIFY_MAX_BYTES, UIDS_MAX};
use whimbrel_model::{Headers, Timestamp, check_brought_id, format_duration, parse_duration};

use super::carrier_backlog::check_backlog;
use crate::accept::draft::{ContentType, DeliveryTime, Draft, PublisherId, PushPart, PushShare};
use crate::accept::entry::{DurationText, PayloadForms, Text};
use crate::api_state::ApiState;
use crate::problem::{ApiProblem, Code};
use crate::query::shown;
use whimbrel_catalogue::topics::Topic;

/// The maximum number of platforms in one push.
const PLATFORMS_NAMED_MAX: usize = 32;
/// The maximum bytes of the server name in an origin.
const ORIGIN_SERVER_MAX_BYTES: usize = 128;
/// The maximum bytes of a record beside payload and task: ids, key, claim, lengths.
const RECORD_BYTES_MORE: usize = 2_048;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct RawPush<'a> {
    pub(super) uid: Option<Text<'a>>,
    pub(super) uids: Option<Vec<Text<'a>>>,
    pub(super) payload: Option<Text<'a>>,
    pub(super) payload_base64: Option<Text<'a>>,
    pub(super) json: Option<&'a RawValue>,
    pub(super) content_type: Option<Text<'a>>,
    pub(super) platforms: Option<Vec<Text<'a>>>,
    pub(super) except_platforms: Option<Vec<Text<'a>>>,
    pub(super) store: Option<bool>,
    pub(super) ttl: Option<DurationText<'a>>,
    pub(super) collapse_key: Option<Text<'a>>,
    pub(super) notify: Option<RawNotify<'a>>,
    pub(super) notify_after: Option<DurationText<'a>>,
    pub(super) delay: Option<DurationText<'a>>,
    pub(super) id: Option<Text<'a>>,
    pub(super) origin: Option<RawOrigin<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct RawNotify<'a> {
    pub(super) title: Option<Text<'a>>,
    pub(super) body: Option<Text<'a>>,
    pub(super) data: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(super) struct RawOrigin<'a> {
    pub(super) server: Text<'a>,
    pub(super) seq: u64,
}

/// Where a request names the users of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UidSource<'a> {
    /// In the path.
    Path(&'a str),
    /// In `uids`.
    Many,
    /// In `uid` or `uids`.
    Either,
}

/// Pushes that are ready to be accepted.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Drafts of the same push are adjacent.
    pub(super) drafts: Vec<Draft>,
    pub(super) each: Vec<PushSize>,
    /// The bytes of the drafts beyond the received bodies.
    pub(super) more_bytes: usize,
}

/// The number of drafts of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PushSize(pub(super) usize);

/// Turns pushes into drafts, one after the other.
pub(super) struct PushReader<'a> {
    api: &'a ApiState,
    topic: &'a Topic,
    now: Timestamp,
    /// The code for an invalid field.
    wrong: Code,
    ttl_max: Duration,
    record_bytes_max: usize,
    /// The buffer for keys, payloads and tasks of the whole batch. Each is split off.
    kept: BytesMut,
    /// The end of the current task, the same for all partitions of a push.
    tail: Vec<u8>,
    /// The number of bytes at its end that contain only the push's names.
    names_bytes: usize,
}

impl<'a> PushReader<'a> {
    /// `expected_bytes`: the approximate size of the pushes.
    pub(super) fn new(api: &'a ApiState, topic: &'a Topic, wrong: Code, expected_bytes: usize) -> Self {
        let kept = BytesMut::with_capacity((2 * expected_bytes).min(api.settings.batch_bytes_max));
        let record_bytes_max = api.ports.log.largest_record(topic.number());
        let (now, ttl_max) = (api.ports.clock.now(), api.settings.push_ttl_max);
        Self { api, topic, now, wrong, ttl_max, record_bytes_max, kept, tail: Vec::new(), names_bytes: 0 }
    }

    /// Reads one push in JSON.
    pub(super) fn read(&mut self, entry: &[u8], source: UidSource<'_>, into: &mut Pushes) -> Result<(), ApiProblem> {
        let raw: RawPush<'_> = serde_json::from_slice(entry).map_err(|error| self.parse_problem(&error))?;
        let forms = PayloadForms { payload: raw.payload.as_ref(), base64: raw.payload_base64.as_ref(), json: raw.json };
        let (payload, by_form) = forms.read(&mut self.kept, &self.api.settings, self.wrong)?;
        let content_type = match &raw.content_type {
            Some(text) => ContentType::checked(text.0.as_bytes(), &self.api.settings)
                .map_err(|problem| problem.with("field", "content_type"))?,
            None => by_form,
        };
        self.validate(&raw, payload, content_type, source, into)
    }

    /// Validates a push whose payload is already read.
    pub(super) fn validate(
        &mut self,
        raw: &RawPush<'_>,
        payload: Bytes,
        content_type: ContentType,
        source: UidSource<'_>,
        into: &mut Pushes,
    ) -> Result<(), ApiProblem> {
        let uids = self.uids_of(raw, source)?;
        let own_id = self.own_id_of(raw)?;
        let delay = raw.delay.as_ref().map(|delay| &*delay.0);
        let later = DeliveryTime::checked(delay, None, self.now).map_err(|problem| problem.with("field", "delay"))?;
        self.write_tail(raw, own_id.as_ref().and_then(|own_id| own_id.also.as_deref()))?;
        let plain = Draft { key: None, payload, content_type, headers: Headers::EMPTY, own_id, later, push: None };
        self.spread(&uids, plain, into)
    }

    fn parse_problem(&self, error: &serde_json::Error) -> ApiProblem {
        if !error.is_data() {
            return ApiProblem::new(Code::BadJson, error.to_string());
        }
        let text = error.to_string();
        let field = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()).map(str::to_owned);
        let problem = ApiProblem::new(self.wrong, text);
        field.map_or(problem.clone(), |field| problem.with("field", shown(&field).as_ref()))
    }

    fn wrong(&self, field: &str, what: impl std::fmt::Display) -> ApiProblem {
        ApiProblem::new(self.wrong, format!("`{field}` {what}")).with("field", field)
    }

    /// The users, without duplicates, in the order of the request.
    fn uids_of<'b>(&self, raw: &'b RawPush<'_>, source: UidSource<'b>) -> Result<Vec<&'b str>, ApiProblem> {
        let uids: Vec<&str> = match (source, &raw.uid, &raw.uids) {
            (UidSource::Path(uid), None, None) => vec![uid],
            (UidSource::Path(_), Some(_), _) => {
                return Err(self.wrong("uid", "must be absent: the path names the user"));
            }
            (UidSource::Path(_), _, Some(_)) => {
                return Err(self.wrong("uids", "must be absent: use POST /v1/users/messages for many users"));
            }
            (UidSource::Many, Some(_), _) => {
                return Err(self.wrong("uid", "must be absent: name the users in `uids`"));
            }
            (UidSource::Many, None, None) => return Err(self.wrong("uids", "is missing: name the users")),
            (UidSource::Either, None, None) => return Err(self.wrong("uid", "is missing: set `uid` or `uids`")),
            (UidSource::Either, Some(_), Some(_)) => {
                return Err(self.wrong("uids", "and `uid` are both set: set only one"));
            }
            (UidSource::Either, Some(uid), None) => vec![&*uid.0],
            (UidSource::Many | UidSource::Either, None, Some(uids)) => {
                if uids.is_empty() {
                    return Err(self.wrong("uids", "is empty: name at least one user"));
                }
                if uids.len() > UIDS_MAX {
                    return Err(self.wrong("uids", format_args!("has {} users; the limit is {UIDS_MAX}", uids.len())));
                }
                let mut seen = HashSet::with_capacity(uids.len());
                uids.iter().map(|uid| &*uid.0).filter(|uid| seen.insert(*uid)).collect()
            }
        };
        for uid in &uids {
            check_uid(uid).map_err(|error| {
                ApiProblem::new(Code::BadUid, format!("`{}`: {error}", shown(uid))).with("field", "uid")
            })?;
        }
        Ok(uids)
    }

    /// The names of a push: the sender's id, an id made from its origin, or both.
    fn own_id_of(&self, raw: &RawPush<'_>) -> Result<Option<PublisherId>, ApiProblem> {
        if let Some(origin) = &raw.origin {
            let server = &origin.server.0;
            if !(1..=ORIGIN_SERVER_MAX_BYTES).contains(&server.len()) || server.chars().any(char::is_control) {
                let what = format!("must have 1 to {ORIGIN_SERVER_MAX_BYTES} bytes and no control characters");
                return Err(self.wrong("origin.server", what));
            }
        }
        let by_origin = raw.origin.as_ref().map(|origin| id_of_origin(&origin.server.0, origin.seq));
        let Some(id) = &raw.id else { return Ok(by_origin.map(|id| PublisherId::by_id(id, None))) };
        check_brought_id(&id.0)?;
        let also = by_origin.filter(|by_origin| **by_origin != *id.0);
        Ok(Some(PublisherId::by_id(id.0.as_ref().into(), also)))
    }

    /// Writes the part of the task after the users, which is the same for all partitions.
    fn write_tail(&mut self, raw: &RawPush<'_>, also: Option<&str>) -> Result<(), ApiProblem> {
        let mut tail = std::mem::take(&mut self.tail);
        tail.clear();
        let outcome = self.write_members(&mut tail, raw);
        let before_names = tail.len();
        write_names_of(&mut tail, raw, also);
        self.names_bytes = tail.len() - before_names;
        self.tail = tail;
        outcome
    }

    fn write_members(&self, tail: &mut Vec<u8>, raw: &RawPush<'_>) -> Result<(), ApiProblem> {
        tail.extend_from_slice(b"],\"store\":");
        tail.extend_from_slice(if raw.store.unwrap_or(true) { b"true" } else { b"false" });
        self.write_platforms(tail, raw)?;
        if let Some(ttl) = &raw.ttl {
            let ttl_ms = self.millis("ttl", ttl, Duration::from_millis(1))?;
            write!(tail, ",\"ttl_ms\":{ttl_ms}").expect("writing to a buffer cannot fail");
        }
        if let Some(key) = &raw.collapse_key {
            if !(1..=COLLAPSE_KEY_MAX_BYTES).contains(&key.0.len()) {
                return Err(self.wrong("collapse_key", format_args!("must have 1 to {COLLAPSE_KEY_MAX_BYTES} bytes")));
            }
            write_text(tail, ",\"collapse_key\":", &key.0);
        }
        match (&raw.notify, &raw.notify_after) {
            (None, None) => {}
            (None, Some(_)) => return Err(self.wrong("notify_after", "needs `notify`")),
            (Some(notify), after) => {
                self.write_notify(tail, notify)?;
                if let Some(after) = after {
                    let after_ms = self.millis("notify_after", after, Duration::ZERO)?;
                    write!(tail, ",\"notify_after_ms\":{after_ms}").expect("writing to a buffer cannot fail");
                }
            }
        }
        Ok(())
    }

    fn write_platforms(&self, tail: &mut Vec<u8>, raw: &RawPush<'_>) -> Result<(), ApiProblem> {
        let wanted = raw.platforms.as_deref();
        let excepted = raw.except_platforms.as_deref().unwrap_or_default();
        for (field, named) in [("platforms", wanted.unwrap_or_default()), ("except_platforms", excepted)] {
            if named.len() > PLATFORMS_NAMED_MAX {
                return Err(
                    self.wrong(field, format_args!("has {} of at most {PLATFORMS_NAMED_MAX} entries", named.len()))
                );
            }
            for platform in named {
                Platform::new(&platform.0).map_err(|error| {
                    let detail = format!("`{field}` contains `{}`: {error}", shown(&platform.0));
                    ApiProblem::new(Code::BadPlatform, detail).with("field", field)
                })?;
            }
        }
        if let Some(wanted) = wanted {
            if wanted.iter().all(|platform| excepted.iter().any(|other| other.0 == platform.0)) {
                return Err(self.wrong("platforms", "has no platform beside `except_platforms`"));
            }
            write_names(tail, ",\"platforms\":[", wanted);
        }
        if !excepted.is_empty() {
            write_names(tail, ",\"except_platforms\":[", excepted);
        }
        Ok(())
    }

    fn write_notify(&self, tail: &mut Vec<u8>, notify: &RawNotify<'_>) -> Result<(), ApiProblem> {
        let parts = [
            ("\"title\":", notify.title.as_ref().map(|title| &*title.0)),
            ("\"body\":", notify.body.as_ref().map(|body| &*body.0)),
            ("\"data\":", notify.data.map(RawValue::get)),
        ];
        let bytes: usize = parts.iter().filter_map(|(_, text)| *text).map(str::len).sum();
        if parts.iter().all(|(_, text)| text.is_none()) {
            return Err(self.wrong("notify", "must have `title`, `body` or `data`"));
        }
        if bytes > NOTIFY_MAX_BYTES {
            let what = format!("has {bytes} bytes of title, body and data; the limit is {NOTIFY_MAX_BYTES}");
            return Err(self.wrong("notify", what).with("limit", NOTIFY_MAX_BYTES));
        }
        tail.extend_from_slice(b",\"notify\":{");
        let given = parts.iter().filter_map(|(name, text)| text.map(|text| (*name, text)));
        for (index, (name, text)) in given.enumerate() {
            if index > 0 {
                tail.push(b',');
            }
            write_text(tail, name, text);
        }
        tail.push(b'}');
        Ok(())
    }

    /// A duration from `least` to the maximum TTL, in milliseconds.
    fn millis(&self, field: &'static str, text: &DurationText<'_>, least: Duration) -> Result<u64, ApiProblem> {
        let wrong =
            |what: String| ApiProblem::new(Code::BadDuration, format!("`{field}`: {what}")).with("field", field);
        let duration = parse_duration(&text.0).map_err(|error| wrong(error.to_string()))?;
        if !(least..=self.ttl_max).contains(&duration) {
            let (from, to) = (format_duration(least), format_duration(self.ttl_max));
            return Err(wrong(format!("must be from {from} to {to}, got {}", format_duration(duration))));
        }
        Ok(duration.as_millis() as u64)
    }

    /// Makes one draft for each partition of the users.
    fn spread(&mut self, uids: &[&str], mut plain: Draft, into: &mut Pushes) -> Result<(), ApiProblem> {
        let has_own_id = plain.own_id.is_some();
        let groups = self.groups_of(uids);
        if plain.later.is_none() {
            groups.iter().try_for_each(|(partition, _)| check_backlog(self.api, self.topic, *partition))?;
        }
        if let [(_, all)] = &groups[..] {
            let rest = self.rest_of(all, has_own_id, plain.payload.len())?;
            let key = Some(self.keep(all[0].as_bytes()));
            let push = Some(PushPart { rest, names_bytes: self.names_bytes, share: None });
            into.drafts.push(Draft { key, push, ..plain });
            into.each.push(PushSize(1));
            return Ok(());
        }
        let uids_sum = sum_of(uids);
        let own_id = plain.own_id.take();
        let id: Box<str> = match &own_id {
            Some(own_id) => own_id.text.clone(),
            None => self.minted(groups[0].0, plain.later.is_some()),
        };
        into.more_bytes += plain.payload.len() * (groups.len() - 1);
        into.each.push(PushSize(groups.len()));
        for (index, (partition, members)) in groups.iter().enumerate() {
            let rest = self.rest_of(members, has_own_id, plain.payload.len())?;
            let key = Some(self.keep(members[0].as_bytes()));
            // The first record has the id itself, so that a search for the id finds it. The others contain a dot, which senders' ids
            // cannot.
            let of_record = |id: &str| if index == 0 { id.into() } else { format!("{id}.p{partition}").into() };
            let record_id: Box<str> = of_record(&id);
            let also = own_id.as_ref().and_then(|own_id| own_id.also.as_deref()).map(of_record);
            let own_id = has_own_id.then(|| PublisherId::by_id(record_id.clone(), also));
            let share = Some(Box::new(PushShare { id: id.clone(), record_id, uids_sum }));
            let push = Some(PushPart { rest, names_bytes: self.names_bytes, share });
            into.drafts.push(Draft { key, own_id, push, ..plain.clone() });
        }
        Ok(())
    }

    /// The users by partition, in partition order.
    fn groups_of<'b>(&self, uids: &[&'b str]) -> Vec<(u32, Vec<&'b str>)> {
        let partition_of = |uid: &str| self.topic.place(Some(uid.as_bytes())).index;
        if let [only] = uids {
            return vec![(partition_of(only), vec![*only])];
        }
        let mut groups: Vec<Vec<&str>> = vec![Vec::new(); self.topic.partitions() as usize];
        for uid in uids {
            groups[partition_of(uid) as usize].push(uid);
        }
        (0..).zip(groups).filter(|(_, members)| !members.is_empty()).collect()
    }

    fn minted(&self, partition: u32, is_held: bool) -> Box<str> {
        let mint = &self.api.mint;
        let id = match is_held {
            true => mint.mint_held(self.now, self.topic.number()),
            false => mint.mint(self.now, self.topic.partition(partition)),
        };
        id.to_string().into()
    }

    /// The task as JSON, from the end of its id on.
    fn rest_of(&mut self, uids: &[&str], has_own_id: bool, payload_bytes: usize) -> Result<Bytes, ApiProblem> {
        let Self { kept, tail, .. } = self;
        kept.put_slice(if has_own_id { b"\",\"brought\":true,\"uids\":[" } else { b"\",\"brought\":false,\"uids\":[" });
        for (index, uid) in uids.iter().enumerate() {
            if index > 0 {
                kept.put_u8(b',');
            }
            serde_json::to_writer(kept.writer(), uid).expect("writing to a buffer cannot fail");
        }
        kept.put_slice(tail);
        let rest = kept.split().freeze();
        let bytes = rest.len() + payload_bytes + RECORD_BYTES_MORE;
        if bytes <= self.record_bytes_max {
            return Ok(rest);
        }
        let limit = self.record_bytes_max;
        let detail = format!("the push has {bytes} bytes with its users; the limit is {limit}. Name fewer users");
        Err(ApiProblem::new(Code::PayloadTooLarge, detail).with("limit", limit))
    }

    fn keep(&mut self, bytes: &[u8]) -> Bytes {
        self.kept.put_slice(bytes);
        self.kept.split().freeze()
    }
}

/// The id of a push that has only an origin. It is the same on all nodes of all data centres.
fn id_of_origin(server: &str, seq: u64) -> Box<str> {
    let mut hash = Sha256::new();
    hash.update((server.len() as u64).to_le_bytes());
    hash.update(server.as_bytes());
    hash.update(seq.to_le_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let half = u128::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"));
    format!("origin-{half:032x}").into()
}

fn sum_of(uids: &[&str]) -> [u8; 8] {
    let mut crc = Crc::new(CrcAlgorithm::Crc64Nvme);
    for uid in uids {
        crc.update(&(uid.len() as u64).to_le_bytes());
        crc.update(uid.as_bytes());
    }
    crc.finalize().to_le_bytes()
}

fn write_text(out: &mut Vec<u8>, name: &str, text: &str) {
    out.extend_from_slice(name.as_bytes());
    serde_json::to_writer(out, text).expect("writing to a buffer cannot fail");
}

/// Writes the end of a task: the names of the push.
fn write_names_of(tail: &mut Vec<u8>, raw: &RawPush<'_>, also: Option<&str>) {
    if let Some(origin) = &raw.origin {
        write_text(tail, ",\"origin\":{\"server\":", &origin.server.0);
        write!(tail, ",\"seq\":{}}}", origin.seq).expect("writing to a buffer cannot fail");
    }
    if let Some(also) = also {
        write_text(tail, ",\"also\":", also);
    }
    tail.push(b'}');
}

/// Platform names have no characters that JSON would escape.
fn write_names(out: &mut Vec<u8>, before: &str, names: &[Text<'_>]) {
    out.extend_from_slice(before.as_bytes());
    for (index, name) in names.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(name.0.as_bytes());
        out.push(b'"');
    }
    out.push(b']');
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_origins_have_equal_ids_and_others_differ() {
        let id = id_of_origin("shop-1", 7);
        assert_eq!(id, id_of_origin("shop-1", 7));
        check_brought_id(&id).unwrap();
        for (server, seq) in [("shop-1", 8), ("shop-", 17), ("shop-2", 7)] {
            assert_ne!(id, id_of_origin(server, seq));
        }
    }

    #[test]
    fn other_users_have_another_checksum() {
        assert_eq!(sum_of(&["ab", "c"]), sum_of(&["ab", "c"]));
        assert_ne!(sum_of(&["ab", "c"]), sum_of(&["a", "bc"]));
        assert_ne!(sum_of(&["ab", "c"]), sum_of(&["ab"]));
    }
}
