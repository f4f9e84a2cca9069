//! The fold: applies each record of `_push` to its users, in the order of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::FixedState;
use whimbrel_model::people::{PlatformSettings, Uid};
use whimbrel_model::ports::{Delivery, DeliveryPosition, OutMessage, RowKey, ToGateway};
use whimbrel_model::push::{
    Notice, NoticeDevice, NoticeDue, Notify, PUSH_FORMAT, PushMessage, PushRetry, PushTask, expiry, seq_of,
};
use whimbrel_model::record::{HEADER_CONTENT_TYPE, HEADER_FINGERPRINT, HEADER_IDEMPOTENCY_KEY};
use whimbrel_model::{Platform, Record, SessionsRule, Timestamp};

use super::delivery::{deliver, watch_from};
use super::live_session::FoldedDelivery;
use super::{CarrierRecord, LiveSession, LoadedUser, PushPartition};
use crate::carrier::user_box::{InboxSlot, PlatformFilter, PlatformRules, device_name};

/// While a store is rebuilt, only messages younger than this cause notices: the earlier owner wrote the notices of older ones.
const REBUILT_NOTICES_WITHIN: Duration = Duration::from_secs(60);

/// Seed for hashes of ids and collapse keys. The stores contain these hashes, so it must never change.
const HASHES: FixedState = FixedState::with_seed(0x5748_494d_4252_454c);

/// The hash of a text, never zero: zero stands for no text.
pub(super) fn hash_of(text: &str) -> u64 {
    HASHES.hash_one(text).max(1)
}

struct IncomingPush<'a> {
    message: &'a PushMessage,
    slot: InboxSlot,
    out: Arc<OutMessage>,
    /// Hashes of the names by which a repeat is detected.
    names: Vec<u64>,
    /// Its offset is below `began_at`: an earlier owner may have handled it.
    is_old: bool,
}

/// The names of a message that its publisher named, as hashes. A hash covers publisher and content: two services may use the same
/// names, and a name may be used again after its receipt has expired.
fn names_of(message: &PushMessage, record: &Record) -> Vec<u64> {
    if !message.brought {
        return Vec::new();
    }
    let (owner, what) = (record.headers.get(HEADER_IDEMPOTENCY_KEY), record.headers.get(HEADER_FINGERPRINT));
    let names = std::iter::once(&message.id).chain(&message.also);
    let hash = |name: &String| {
        // Length-prefixed by hand, because the standard hash of a tuple is not stable.
        let mut hasher = HASHES.build_hasher();
        for part in [name.as_bytes(), owner.unwrap_or_default(), what.unwrap_or_default()] {
            hasher.write_u64(part.len() as u64);
            hasher.write(part);
        }
        hasher.finish().max(1)
    };
    names.map(hash).collect()
}

impl PushPartition {
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
        let slot = InboxSlot {
            seq,
            sent_at,
            expires_at,
            filter: PlatformFilter::of(message),
            collapse: message.collapse_key.as_deref().map_or(0, hash_of),
            bytes: u32::try_from(out.payload.len()).unwrap_or(u32::MAX),
            shared: message.uids.len() > 1,
        };
        if expires_at <= self.clock.expiry_now(now) {
            self.counts.expired += message.uids.len() as u64;
            for uid in &message.uids {
                self.fold_expired(uid, message, &slot, now);
                self.release(uid);
            }
            return;
        }
        let (names, is_old) = (names_of(message, record), offset < self.position.began_at);
        let incoming = IncomingPush { message, slot, out, names, is_old };
        let mut wake = NoticeRecipients::default();
        for uid in &message.uids {
            self.fold_for(uid, &incoming, now, &mut wake);
            self.release(uid);
        }
        // An earlier owner wrote the notice when the message was new.
        let was_told = is_old && self.position.is_rebuilding && expiry(sent_at, millis(REBUILT_NOTICES_WITHIN)) <= now;
        if let Some(notify) = &message.notify
            && !was_told
        {
            self.notify(seq, message, notify, expires_at, wake, now);
        }
    }

    /// Reports a stored message that expired before it was folded to the seats that would have had it.
    fn fold_expired(&mut self, uid: &str, message: &PushMessage, slot: &InboxSlot, now: Timestamp) {
        let Some((uid, user)) = self.users.named_mut(uid) else { return };
        if message.store && user.state.miss(slot, &*self.rules) {
            self.unsaved.note(&uid, user);
            user.sessions.iter_mut().for_each(|live| live.is_behind = true);
            for at in 0..user.sessions.len() {
                self.send_next(&uid, at, now);
            }
        }
    }

    /// Folds a message for one of its users.
    fn fold_for(&mut self, uid: &str, incoming: &IncomingPush<'_>, now: Timestamp, wake: &mut NoticeRecipients) {
        let IncomingPush { message, names, .. } = incoming;
        let Some((uid, user)) = self.users.named_mut(uid) else {
            // No session is connected, and the message is not stored.
            self.counts.dropped += 1;
            if message.notify.is_some()
                && let Ok(uid) = Uid::new(uid)
            {
                wake.now.push(uid);
            }
            return;
        };
        if !names.is_empty() {
            self.unsaved.note(&uid, user);
            if user.state.is_repeat(names.iter().copied()) {
                self.counts.repeats += 1;
                return;
            }
        }
        let is_stored = message.store && is_kept(user, message, &|platform: &Platform| (self.rules)(platform).store);
        if is_stored {
            self.store(&uid, incoming);
        }
        let is_there = self.send(&uid, incoming, is_stored, now, wake);
        if !is_there && !is_stored {
            self.counts.dropped += 1;
        }
        if message.notify.is_some() && !is_there {
            wake.now.push(uid);
        }
    }

    /// Puts a message into the box of one of its users.
    fn store(&mut self, uid: &Uid, incoming: &IncomingPush<'_>) {
        let IncomingPush { slot, out, .. } = incoming;
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let gone = user.state.store(slot.clone(), &*self.rules);
        let is_in = user.state.slots.back().is_some_and(|last| last.seq == slot.seq);
        if is_in {
            self.counts.stored += 1;
            self.unsaved.put_row(uid, slot, out);
        }
        // It may displace other messages without being stored itself.
        if is_in || !gone.is_empty() {
            self.unsaved.note(uid, user);
        }
        self.counts.lost += gone.len() as u64;
        self.unsaved.drop_rows(uid, gone.into_iter().filter(|gone| gone.seq != slot.seq));
    }

    /// Sends a message to the sessions of one of its users. `false` if it is for none of them.
    fn send(
        &mut self,
        uid: &Uid,
        incoming: &IncomingPush<'_>,
        is_stored: bool,
        now: Timestamp,
        wake: &mut NoticeRecipients,
    ) -> bool {
        let IncomingPush { message, slot, out, is_old, .. } = incoming;
        let Some(user) = self.users.get_mut(uid.as_str()) else { return false };
        let mut is_there = false;
        let mut served = UnnumberedSeats::default();
        let (mut after_losses, mut sent_before) = (Vec::new(), Vec::new());
        for (at, live) in user.sessions.iter_mut().enumerate().filter(|(_, live)| message.is_for(&live.platform)) {
            is_there = true;
            let settings = (self.rules)(&live.platform);
            if is_stored && settings.store {
                match live.fold(slot, &user.state.seats, &self.settings) {
                    FoldedDelivery::Now => {
                        deliver(live, slot, Arc::clone(out), now, &mut self.gateways);
                        self.counts.delivered_stored += 1;
                        watch_from(live, now, uid, &*self.rules, &mut self.deadlines);
                    }
                    FoldedDelivery::SentBefore => sent_before.push(at),
                    FoldedDelivery::AfterLosses => after_losses.push(at),
                    FoldedDelivery::NotNow => {}
                }
            } else if !*is_old || (live.was_announced && slot.sent_at >= live.arrived) {
                // Earlier sessions received an old message from an earlier owner. Sessions that arrived later have missed it.
                let place = DeliveryPosition::Ephemeral { place: slot.seq };
                let delivery = Delivery { session: live.session, place, again: false, message: Arc::clone(out) };
                self.gateways.tell(live.gateway, ToGateway::Deliver(delivery));
                self.counts.delivered_ephemeral += 1;
                served.add(live, &settings);
            }
        }
        if message.notify.is_some() && is_there {
            wake.later.entry(served).or_default().push(uid.clone());
        }
        sent_before.into_iter().for_each(|at| self.watch(uid, at));
        after_losses.into_iter().for_each(|at| self.send_next(uid, at, now));
        is_there
    }

    /// Writes notices for offline users at once, and for users with a session after the acknowledgement timeout or `notify_after_ms`.
    fn notify(
        &mut self,
        seq: u64,
        message: &PushMessage,
        notify: &Notify,
        expires_at: Timestamp,
        wake: NoticeRecipients,
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
        // A new owner does not have all sessions yet.
        let is_settling = !self.clock.has_waited(self.settings.announce_wait, now);
        if message.notify_after_ms.is_some_and(|after| after > 0) || is_settling {
            if !wake.now.is_empty() {
                later.entry(UnnumberedSeats::default()).or_default().extend(wake.now);
            }
        } else {
            let notices = wake.now.iter().map(|uid| Notice { uid: uid.as_str().to_owned(), ..notice.clone() });
            notices.for_each(|notice| self.outbound.push(CarrierRecord::Notice(notice)));
            self.counts.notices += wake.now.len() as u64;
        }
        let after = message.notify_after_ms.unwrap_or(whimbrel_model::people::ACK_TIMEOUT_DEFAULT.as_millis() as u64);
        for (served, uids) in later {
            let (Some(first), Some(notice)) = (uids.first().cloned(), served.exclude_from(&notice)) else { continue };
            let uids = uids.iter().map(|uid| uid.as_str().to_owned()).collect();
            let task = PushTask::NoticeDue(NoticeDue { uids, seq, notice });
            // The id derives from the message's number, so that another fold makes the same hold.
            let id = format!("notice-{}-{}-{seq}", self.inbox_epoch, first.as_str().len());
            let id = format!("{id}-{:016x}", hash_of(first.as_str()));
            self.outbound.push(CarrierRecord::Hold { id, uid: first, task, due: expiry(now, after) });
        }
    }

    /// Writes the notices for users who have not acknowledged by the due time.
    fn fold_notice_due(&mut self, due: NoticeDue, now: Timestamp) {
        if due.notice.expires_at_ms > now.as_millis() {
            for uid in &due.uids {
                let Some(user) = self.users.get(uid.as_str()) else { continue };
                if let Some(notice) = notice_for(uid, user, &due, &*self.rules) {
                    self.counts.notices += 1;
                    self.outbound.push(CarrierRecord::Notice(notice));
                }
            }
        }
        due.uids.iter().for_each(|uid| self.release(uid));
    }

    /// Sends the unacknowledged messages of a seat again.
    fn fold_retry(&mut self, retry: &PushRetry, now: Timestamp) {
        let Some((uid, user)) = self.users.named_mut(&retry.uid) else { return };
        let is_seat = |live: &LiveSession| live.platform == retry.platform && *live.device == *retry.device;
        let Some(at) = user.sessions.iter().position(is_seat) else { return };
        let live = &mut user.sessions[at];
        // The retry belongs to an earlier session, or an acknowledgement came first.
        if !live.is_held || live.attempt != retry.attempt || live.window.is_empty() {
            return;
        }
        live.is_held = false;
        self.counts.retries += 1;
        self.send_again(&uid, at, now);
    }

    fn fold_wipe(&mut self, uid: &str) {
        let Some((uid, user)) = self.users.named_mut(uid) else { return };
        let gone = user.state.wipe();
        for live in &mut user.sessions {
            live.is_behind = false;
            live.window.clear();
            live.reset_retries();
        }
        if !gone.is_empty() {
            self.unsaved.note(&uid, user);
            self.unsaved.drop_rows(&uid, gone);
        }
        self.release(uid.as_str());
    }
}

/// The recipients of a message's notice.
#[derive(Default)]
struct NoticeRecipients {
    now: Vec<Uid>,
    /// Users with a session, by the seats that received the message without a number.
    later: BTreeMap<UnnumberedSeats, Vec<Uid>>,
}

/// The seats that received a message without a number, which they cannot acknowledge. They get no notice for it.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct UnnumberedSeats {
    /// Platforms with one seat.
    platforms: BTreeSet<Platform>,
    /// Platforms with a seat for each device: platform and device name.
    devices: BTreeSet<(Platform, Box<str>)>,
}

impl UnnumberedSeats {
    fn add(&mut self, live: &LiveSession, settings: &PlatformSettings) {
        if !matches!(settings.sessions, SessionsRule::Many(_)) {
            self.platforms.insert(live.platform.clone());
        } else if !device_name(&live.device).is_empty() {
            self.devices.insert((live.platform.clone(), live.device.clone()));
        }
    }

    /// The notice without these seats. `None` if no platform is left.
    fn exclude_from(&self, notice: &Notice) -> Option<Notice> {
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

/// The notice for the platforms that have not acknowledged; on a platform with a seat for each device, for the devices that have not.
/// Registered devices that never connected stay included.
fn notice_for(uid: &str, user: &LoadedUser, due: &NoticeDue, rules: &PlatformRules) -> Option<Notice> {
    let acknowledged = || user.state.seats.iter().filter(|seat| seat.cursor >= due.seq);
    let is_many = |platform: &Platform| matches!(rules(platform).sessions, SessionsRule::Many(_));
    // The seat of a platform with one seat decides, even if seats of an earlier rule remain.
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

/// Whether a platform stores it: one that it names, or one of the user's. A user without seats counts as storing.
fn is_kept(user: &LoadedUser, message: &PushMessage, stores: &dyn Fn(&Platform) -> bool) -> bool {
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

pub(super) fn row_key(uid: &Uid, slot: &InboxSlot) -> RowKey {
    if slot.shared { RowKey::Shared { seq: slot.seq } } else { RowKey::Own { uid: uid.clone(), seq: slot.seq } }
}
