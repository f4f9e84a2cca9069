//! Folding: what each record of `_push` does to its users, in the order of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::FixedState;
use whimbrel_model::people::{PlatformSettings, Uid};
use whimbrel_model::ports::{Delivery, DeliveryPlace, OutMessage, RowKey, ToGateway};
use whimbrel_model::push::{
    Notice, NoticeDevice, NoticeDue, Notify, PUSH_FORMAT, PushMessage, PushRetry, PushTask, expiry, seq_of,
};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_FINGERPRINT, HEADER_IDEMPOTENCY_KEY};
use whimbrel_model::{Platform, Record, SessionsRule, Timestamp};

use super::super::user_box::{Filter, PlatformRules, Seat, Slot, device_name};
use super::{Letter, Live, Partition, User};

/// While a store is built anew from the log, only who missed a message so young is woken for it: the others were when it was new.
const REBUILT_NOTICES_WITHIN: Duration = Duration::from_secs(60);

/// Hashes of ids and collapse keys are written to stores: they must be the same everywhere and always.
const HASHES: FixedState = FixedState::with_seed(0x5748_494d_4252_454c);

/// Never zero, which stands for none.
pub(super) fn hash_of(text: &str) -> u64 {
    HASHES.hash_one(text).max(1)
}

/// A message on its way to its users.
struct Incoming<'a> {
    message: &'a PushMessage,
    slot: Slot,
    out: Arc<OutMessage>,
    /// Hashes of the names under which a repeat of it is known.
    names: Vec<u64>,
    /// An earlier owner may have handled it.
    is_old: bool,
}

/// The names of a message that was brought with some. They belong to whoever published it, and to what it is: two services may number their
/// messages alike, and a name may be used anew when the door has forgotten it.
fn names_of(message: &PushMessage, record: &Record) -> Vec<u64> {
    if !message.brought {
        return Vec::new();
    }
    let (owner, what) = (record.headers.get(HEADER_IDEMPOTENCY_KEY), record.headers.get(HEADER_FINGERPRINT));
    let names = std::iter::once(&message.id).chain(&message.also);
    let hash = |name: &String| {
        // Byte by byte: how a tuple is hashed is nobody's promise.
        let mut hasher = HASHES.build_hasher();
        for part in [name.as_bytes(), owner.unwrap_or_default(), what.unwrap_or_default()] {
            hasher.write_u64(part.len() as u64);
            hasher.write(part);
        }
        hasher.finish().max(1)
    };
    names.map(hash).collect()
}

impl Partition {
    pub(super) fn fold(&mut self, offset: u64, record: &Record, task: PushTask, now: Timestamp) {
        match task {
            PushTask::Message(message) => self.fold_message(offset, record, &message, now),
            PushTask::Retry(retry) => self.fold_retry(&retry, now),
            PushTask::NoticeDue(due) => self.fold_notice_due(due, now),
            PushTask::Kick(kick) => self.fold_kick(offset, record, kick, now),
            PushTask::Wipe { uid } => self.fold_wipe(&uid),
        }
    }

    fn fold_message(&mut self, offset: u64, record: &Record, message: &PushMessage, now: Timestamp) {
        let (seq, sent_at) = (seq_of(offset), record.timestamp);
        let ttl_max = u64::try_from(self.settings.ttl_max.as_millis()).unwrap_or(u64::MAX);
        let expires_at = expiry(sent_at, message.ttl_ms.unwrap_or(ttl_max).min(ttl_max));
        self.counts.taken += message.uids.len() as u64;
        let content_type = record.headers.get(HEADER_CONTENT_TYPE).map(|name| String::from_utf8_lossy(name).into());
        let out = Arc::new(OutMessage {
            id: message.id.as_str().into(),
            payload: record.value.clone(),
            content_type,
            sent_at,
            ..OutMessage::default()
        });
        let slot = Slot {
            seq,
            sent_at,
            expires_at,
            filter: Filter::of(message),
            collapse: message.collapse_key.as_deref().map_or(0, hash_of),
            bytes: u32::try_from(out.payload.len()).unwrap_or(u32::MAX),
            shared: message.uids.len() > 1,
        };
        if expires_at <= self.expiry_now(now) {
            self.counts.expired += message.uids.len() as u64;
            for uid in &message.uids {
                self.fold_too_late(uid, message, &slot, now);
                self.release(uid);
            }
            return;
        }
        let (names, is_old) = (names_of(message, record), offset < self.began_at);
        let incoming = Incoming { message, slot, out, names, is_old };
        let mut wake = Waking::default();
        for uid in &message.uids {
            self.fold_for(uid, &incoming, now, &mut wake);
            self.release(uid);
        }
        // Who was woken when it was new is not woken again because a store is built anew.
        let was_told = is_old && self.is_rebuilding && expiry(sent_at, millis(REBUILT_NOTICES_WITHIN)) <= now;
        if let Some(notify) = &message.notify
            && !was_told
        {
            self.notify(seq, message, notify, expires_at, wake, now);
        }
    }

    /// A stored message whose time was over before it was handled: whoever would have had it is told that it is gone.
    fn fold_too_late(&mut self, uid: &str, message: &PushMessage, slot: &Slot, now: Timestamp) {
        let rules = Arc::clone(&self.rules);
        let Some((uid, user)) = self.users.get_key_value(uid).map(|(uid, _)| uid.clone()).zip(self.users.get_mut(uid))
        else {
            return;
        };
        if message.store && user.state.miss(slot, &*rules) {
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            user.lives.iter_mut().for_each(|live| live.is_behind = true);
            for at in 0..self.users.get(uid.as_str()).map_or(0, |user| user.lives.len()) {
                self.read_on(&uid, at, now);
            }
        }
    }

    /// One user's part of a message.
    fn fold_for(&mut self, uid: &str, incoming: &Incoming<'_>, now: Timestamp, wake: &mut Waking) {
        let Incoming { message, slot, out, names, is_old } = incoming;
        let rules = Arc::clone(&self.rules);
        let Some((uid, user)) = self.users.get_key_value(uid).map(|(uid, _)| uid.clone()).zip(self.users.get_mut(uid))
        else {
            // Nobody is there, and nothing is stored.
            self.counts.dropped += 1;
            if message.notify.is_some()
                && let Ok(uid) = Uid::new(uid)
            {
                wake.now.push(uid);
            }
            return;
        };
        if !names.is_empty() {
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            if user.state.is_repeat(names.iter().copied()) {
                self.counts.repeats += 1;
                return;
            }
        }
        let is_stored = message.store && is_kept(user, message, &|platform: &Platform| rules(platform).store);
        if is_stored {
            let gone = user.state.store(slot.clone(), &*rules);
            let is_in = user.state.slots.back().is_some_and(|last| last.seq == slot.seq);
            if is_in {
                self.counts.stored += 1;
                self.unsaved.put_row(&uid, slot, out);
            }
            // Others may have gone for it although it did not stay itself.
            if is_in || !gone.is_empty() {
                user.is_dirty = true;
                self.unsaved.dirty.insert(uid.clone());
            }
            self.counts.lost += gone.len() as u64;
            self.unsaved.drop_rows(&uid, gone.into_iter().filter(|gone| gone.seq != slot.seq).collect());
        }
        let mut is_there = false;
        let mut served = Served::default();
        let (mut reads_on, mut was_sent) = (Vec::new(), Vec::new());
        for (at, live) in user.lives.iter_mut().enumerate() {
            if !message.is_for(&live.platform) {
                continue;
            }
            is_there = true;
            if is_stored && rules(&live.platform).store {
                if slot.seq <= live.sent {
                    // An earlier owner has sent it; it may still have to be acknowledged.
                    let waits = |seat: &Seat| live.is_on(seat) && seat.waits_for(slot);
                    if user.state.seats.iter().any(waits) {
                        live.unacked.push_back((slot.seq, slot.bytes));
                        live.unacked_bytes += slot.bytes as usize;
                        was_sent.push(at);
                    }
                    continue;
                }
                if live.is_behind || live.reading.is_some() || !live.has_room(slot.bytes, &self.settings) {
                    live.is_behind = true;
                    continue;
                }
                let untold = |seat: &Seat| live.is_on(seat) && seat.lost.iter().any(|(_, to)| *to > live.sent);
                if user.state.seats.iter().any(untold) {
                    // It is to be told first what it lost.
                    live.is_behind = true;
                    reads_on.push(at);
                    continue;
                }
                let prev = live.sends(slot.seq, slot.bytes, now);
                let place = DeliveryPlace::Stored { seq: slot.seq, prev };
                let delivery = Delivery { session: live.session, place, again: false, message: Arc::clone(out) };
                self.news.entry(live.gateway).or_default().push(ToGateway::Deliver(delivery));
                self.counts.delivered_stored += 1;
                if !live.is_watched && !live.is_held {
                    live.is_watched = true;
                    let at = expiry(now, rules(&live.platform).ack_timeout_ms);
                    self.deadlines.push(std::cmp::Reverse((at, uid.clone(), live.gateway, live.session)));
                }
            } else {
                // Whoever was there has it from an earlier owner, or leaves it out; who came since has missed it.
                if *is_old && (!live.was_announced || slot.sent_at < live.arrived) {
                    continue;
                }
                let place = DeliveryPlace::Ephemeral { place: slot.seq };
                let delivery = Delivery { session: live.session, place, again: false, message: Arc::clone(out) };
                self.news.entry(live.gateway).or_default().push(ToGateway::Deliver(delivery));
                self.counts.delivered_ephemeral += 1;
                served.add(live, &rules(&live.platform));
            }
        }
        if !is_there && !is_stored {
            self.counts.dropped += 1;
        }
        if message.notify.is_some() {
            if is_there { wake.later.entry(served).or_default().push(uid.clone()) } else { wake.now.push(uid.clone()) }
        }
        was_sent.into_iter().for_each(|at| self.watch(&uid, at));
        for at in reads_on {
            self.read_on(&uid, at, now);
        }
    }

    /// Who is away is woken at once, and who is there after the time for an acknowledgement, unless the sender said when.
    fn notify(
        &mut self,
        seq: u64,
        message: &PushMessage,
        notify: &Notify,
        expires_at: Timestamp,
        wake: Waking,
        now: Timestamp,
    ) {
        let notice = Notice {
            v: PUSH_FORMAT,
            id: message.id.clone(),
            uid: String::new(),
            platforms: message.platforms.clone(),
            except_platforms: message.except_platforms.clone(),
            except_devices: Vec::new(),
            notify: notify.clone(),
            collapse_key: message.collapse_key.clone(),
            expires_at_ms: expires_at.as_millis(),
        };
        let mut later = wake.later;
        // A new owner does not know yet who is there.
        let is_settling = now < expiry(self.began, millis(self.settings.announce_wait));
        if message.notify_after_ms.is_some_and(|after| after > 0) || is_settling {
            if !wake.now.is_empty() {
                later.entry(Served::default()).or_default().extend(wake.now);
            }
        } else {
            let notices = wake.now.iter().map(|uid| Notice { uid: uid.as_str().to_owned(), ..notice.clone() });
            self.letters.extend(notices.map(Letter::Notice));
            self.counts.notices += wake.now.len() as u64;
        }
        let after = message.notify_after_ms.unwrap_or(whimbrel_model::people::ACK_TIMEOUT_DEFAULT.as_millis() as u64);
        for (served, uids) in later {
            let (Some(first), Some(notice)) = (uids.first().cloned(), served.left_out_of(&notice)) else { continue };
            let uids = uids.iter().map(|uid| uid.as_str().to_owned()).collect();
            let task = PushTask::NoticeDue(NoticeDue { uids, seq, notice });
            // By its place it is the same hold when it is folded again.
            let id = format!("notice-{}-{}-{seq}", self.inbox_epoch, first.as_str().len());
            let id = format!("{id}-{:016x}", hash_of(first.as_str()));
            self.letters.push(Letter::Hold { id, uid: first, task, due: expiry(now, after) });
        }
    }

    /// Whoever has not acknowledged by now is woken.
    fn fold_notice_due(&mut self, due: NoticeDue, now: Timestamp) {
        if due.notice.expires_at_ms > now.as_millis() {
            for uid in &due.uids {
                let Some(user) = self.users.get(uid.as_str()) else { continue };
                if let Some(notice) = notice_for(uid, user, &due, &*self.rules) {
                    self.counts.notices += 1;
                    self.letters.push(Letter::Notice(notice));
                }
            }
        }
        due.uids.iter().for_each(|uid| self.release(uid));
    }

    /// The seat is sent again what it has not acknowledged; after the last time it is closed and counts as away.
    fn fold_retry(&mut self, retry: &PushRetry, now: Timestamp) {
        let Some((uid, user)) = self
            .users
            .get_key_value(retry.uid.as_str())
            .map(|(uid, _)| uid.clone())
            .zip(self.users.get_mut(&*retry.uid))
        else {
            return;
        };
        let is_seat = |live: &Live| live.platform == retry.platform && *live.device == *retry.device;
        let Some(at) = user.lives.iter().position(is_seat) else { return };
        let live = &mut user.lives[at];
        // Of an earlier session, or overtaken by an acknowledgement.
        if !live.is_held || live.attempt != retry.attempt || live.unacked.is_empty() {
            return;
        }
        live.is_held = false;
        self.counts.retries += 1;
        self.send_again(&uid, at, now);
    }

    fn fold_wipe(&mut self, uid: &str) {
        let Some((uid, user)) = self.users.get_key_value(uid).map(|(uid, _)| uid.clone()).zip(self.users.get_mut(uid))
        else {
            return;
        };
        let gone = user.state.wipe();
        for live in &mut user.lives {
            live.is_behind = false;
            live.unacked.clear();
            live.unacked_bytes = 0;
            // What was held to try it again is of no use.
            live.attempt = 0;
            live.is_held = false;
        }
        if !gone.is_empty() {
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.unsaved.drop_rows(&uid, gone);
        }
        self.release(uid.as_str());
    }
}

/// Whom a notice concerns.
#[derive(Default)]
struct Waking {
    now: Vec<Uid>,
    /// Those who are there, by who of them was sent it without a number.
    later: BTreeMap<Served, Vec<Uid>>,
}

/// Who was sent a message that cannot be acknowledged, because it is not stored at all or not for that platform. They are not woken for it.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    /// Of those with one seat, in order.
    platforms: BTreeSet<Platform>,
    /// Of those with a seat for each device: platforms and devices by name.
    devices: BTreeSet<(Platform, Box<str>)>,
}

impl Served {
    fn add(&mut self, live: &Live, settings: &PlatformSettings) {
        if !matches!(settings.sessions, SessionsRule::Many(_)) {
            self.platforms.insert(live.platform.clone());
        } else if !device_name(&live.device).is_empty() {
            self.devices.insert((live.platform.clone(), live.device.clone()));
        }
    }

    /// The notice for the others, where there can be any.
    fn left_out_of(&self, notice: &Notice) -> Option<Notice> {
        let mut notice = notice.clone();
        match &mut notice.platforms {
            Some(platforms) => platforms.retain(|platform| !self.platforms.contains(platform)),
            None => notice.except_platforms.extend(self.platforms.iter().cloned()),
        }
        let named = self.devices.iter();
        notice.except_devices.extend(
            named
                .map(|(platform, device)| NoticeDevice { platform: platform.clone(), device: String::from(&**device) }),
        );
        notice.platforms.as_ref().is_none_or(|platforms| !platforms.is_empty()).then_some(notice)
    }
}

/// The notice for those of a user who have not acknowledged and could: the platforms that have not, and where a platform has a seat for each device,
/// the devices that have not. One that was registered and never connected is among them.
fn notice_for(uid: &str, user: &User, due: &NoticeDue, rules: &PlatformRules) -> Option<Notice> {
    let acknowledged = || user.state.seats.iter().filter(|seat| seat.cursor >= due.seq);
    let is_many = |platform: &Platform| matches!(rules(platform).sessions, SessionsRule::Many(_));
    // One seat speaks for its platform, whatever seats are left of a time when there were many.
    let has_it = |platform: &Platform| !is_many(platform) && acknowledged().any(|seat| seat.platform == *platform);
    let mut notice = Notice { uid: uid.to_owned(), ..due.notice.clone() };
    match &mut notice.platforms {
        Some(platforms) => platforms.retain(|platform| !has_it(platform)),
        None => {
            let platforms = acknowledged().map(|seat| &seat.platform).filter(|platform| has_it(platform));
            notice.except_platforms.extend(platforms.cloned());
            notice.except_platforms.dedup();
        }
    }
    let devices = acknowledged().filter(|seat| is_many(&seat.platform) && !seat.device_name().is_empty());
    let named =
        devices.map(|seat| NoticeDevice { platform: seat.platform.clone(), device: seat.device_name().to_owned() });
    notice.except_devices.extend(named);
    notice.platforms.as_ref().is_none_or(|platforms| !platforms.is_empty()).then_some(notice)
}

/// Whether anybody keeps it: a platform that it names, or one of the user's; one that nobody knows yet would.
fn is_kept(user: &User, message: &PushMessage, stores: &dyn Fn(&Platform) -> bool) -> bool {
    match &message.platforms {
        Some(named) => named.iter().any(|platform| message.is_for(platform) && stores(platform)),
        None => {
            let mut seats = user.state.seats.iter().filter(|seat| message.is_for(&seat.platform)).peekable();
            seats.peek().is_none() || seats.any(|seat| stores(&seat.platform))
        }
    }
}

pub(super) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The row of a slot.
pub(super) fn row_key(uid: &Uid, slot: &Slot) -> RowKey {
    if slot.shared { RowKey::Shared { seq: slot.seq } } else { RowKey::Own { uid: uid.clone(), seq: slot.seq } }
}
