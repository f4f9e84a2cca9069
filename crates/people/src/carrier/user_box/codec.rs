//! The binary format of a box: version, seats, filters, slots, ids, kicks and index time, with variable-length numbers. Decoding checks
//! all bytes from the store.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{decode_varint, encode_varint};
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Platform, SessionId};

use super::{InboxSlot, PlatformFilter, Seat, StoredKick, UserBox};

/// The written version. Earlier ones are still read: 1 has no kicks, 2 no index time, 3 no `exhausted` of seats.
const FORMAT: u8 = 4;
const FLAG_SHARED: u8 = 1;
const FLAG_COLLAPSE: u8 = 2;
const FLAG_FILTER: u8 = 4;
const FLAG_PLATFORM: u8 = 1;
const FLAG_SESSION: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBox {
    #[error("format version {0} is not supported; this binary reads versions up to {FORMAT}")]
    OtherVersion(u8),
    #[error("the stored inbox is damaged")]
    Malformed,
}

impl UserBox {
    pub fn encode(&self) -> Bytes {
        let mut filters: Vec<&Arc<PlatformFilter>> = Vec::new();
        for filter in self.slots.iter().filter_map(|slot| slot.filter.as_ref()) {
            if !filters.contains(&filter) {
                filters.push(filter);
            }
        }
        let mut out = Vec::with_capacity(16 + self.seats.len() * 40 + self.slots.len() * 20);
        out.put_u8(FORMAT);
        number(&mut out, self.seats.len() as u64);
        for seat in &self.seats {
            text(&mut out, seat.platform.as_str());
            text(&mut out, &seat.device);
            number(&mut out, seat.cursor);
            number(&mut out, seat.floor);
            signed(&mut out, seat.seen_at.as_millis());
            number(&mut out, seat.lost.len() as u64);
            for (from, to) in &seat.lost {
                number(&mut out, *from);
                number(&mut out, to - from);
            }
            number(&mut out, seat.exhausted);
        }
        number(&mut out, filters.len() as u64);
        for filter in &filters {
            match &filter.only {
                Some(only) => {
                    number(&mut out, only.len() as u64 + 1);
                    only.iter().for_each(|platform| text(&mut out, platform.as_str()));
                }
                None => number(&mut out, 0),
            }
            number(&mut out, filter.except.len() as u64);
            filter.except.iter().for_each(|platform| text(&mut out, platform.as_str()));
        }
        number(&mut out, self.slots.len() as u64);
        let (mut seq, mut sent_at) = (0, 0);
        for slot in &self.slots {
            let filter = slot.filter.as_ref().and_then(|filter| filters.iter().position(|each| *each == filter));
            let flags = u8::from(slot.shared) * FLAG_SHARED
                + u8::from(slot.collapse != 0) * FLAG_COLLAPSE
                + u8::from(filter.is_some()) * FLAG_FILTER;
            out.put_u8(flags);
            number(&mut out, slot.seq - seq);
            signed(&mut out, slot.sent_at.as_millis().wrapping_sub(sent_at));
            signed(&mut out, slot.expires_at.as_millis().wrapping_sub(slot.sent_at.as_millis()));
            number(&mut out, slot.bytes.into());
            if slot.collapse != 0 {
                out.put_u64_le(slot.collapse);
            }
            if let Some(filter) = filter {
                number(&mut out, filter as u64);
            }
            (seq, sent_at) = (slot.seq, slot.sent_at.as_millis());
        }
        number(&mut out, self.ids.len() as u64);
        self.ids.iter().for_each(|id| out.put_u64_le(*id));
        number(&mut out, self.kicks.len() as u64);
        self.kicks.iter().for_each(|kick| write_kick(&mut out, kick));
        out.put_u8(u8::from(self.found_under.is_some()));
        if let Some(at) = self.found_under {
            signed(&mut out, at.as_millis());
        }
        out.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, BadBox> {
        let (version, rest) = bytes.split_first().ok_or(BadBox::Malformed)?;
        if !(1..=FORMAT).contains(version) {
            return Err(BadBox::OtherVersion(*version));
        }
        let mut rest = rest;
        read(&mut rest, *version).filter(|_| rest.is_empty()).ok_or(BadBox::Malformed)
    }
}

fn read(rest: &mut &[u8], version: u8) -> Option<UserBox> {
    let mut found = UserBox::default();
    for _ in 0..count(rest)? {
        let platform = Platform::new(take_text(rest)?).ok()?;
        let device = take_text(rest)?.into();
        let (cursor, floor) = (take_number(rest)?, take_number(rest)?);
        let seen_at = Timestamp::from_millis(take_signed(rest)?);
        let mut lost = Vec::new();
        for _ in 0..count(rest)? {
            let from = take_number(rest)?;
            lost.push((from, from.checked_add(take_number(rest)?)?));
        }
        let exhausted = if version >= 4 { take_number(rest)? } else { 0 };
        found.seats.reserve_exact(1);
        found.seats.push(Seat { platform, device, cursor, floor, seen_at, exhausted, lost });
    }
    let mut filters = Vec::new();
    for _ in 0..count(rest)? {
        let only = match count(rest)? {
            0 => None,
            more => Some((1..more).map(|_| Platform::new(take_text(rest)?).ok()).collect::<Option<Vec<_>>>()?),
        };
        let except = (0..count(rest)?).map(|_| Platform::new(take_text(rest)?).ok()).collect::<Option<Vec<_>>>()?;
        filters.push(Arc::new(PlatformFilter { only, except }));
    }
    let slots = count(rest)?;
    found.slots = VecDeque::with_capacity(slots);
    let (mut seq, mut sent_at) = (0u64, 0i64);
    for place in 0..slots {
        let flags = take_byte(rest)?;
        let step = take_number(rest)?;
        if place > 0 && step == 0 {
            return None;
        }
        seq = seq.checked_add(step)?;
        sent_at = sent_at.wrapping_add(take_signed(rest)?);
        let expires_at = sent_at.wrapping_add(take_signed(rest)?);
        let bytes = u32::try_from(take_number(rest)?).ok()?;
        let collapse = if flags & FLAG_COLLAPSE == 0 { 0 } else { take_word(rest)? };
        let filter = match flags & FLAG_FILTER {
            0 => None,
            _ => Some(Arc::clone(filters.get(usize::try_from(take_number(rest)?).ok()?)?)),
        };
        let (sent_at, expires_at) = (Timestamp::from_millis(sent_at), Timestamp::from_millis(expires_at));
        let shared = flags & FLAG_SHARED != 0;
        found.slots.push_back(InboxSlot { seq, sent_at, expires_at, filter, collapse, bytes, shared });
    }
    for _ in 0..count(rest)? {
        found.ids.push_back(take_word(rest)?);
    }
    if version >= 2 {
        let count = count(rest)?;
        found.kicks = (0..count).map(|_| read_kick(rest)).collect::<Option<_>>()?;
    }
    if version >= 3 {
        found.found_under = match take_byte(rest)? {
            0 => None,
            1 => Some(Timestamp::from_millis(take_signed(rest)?)),
            _ => return None,
        };
    }
    Some(found)
}

fn write_kick(out: &mut Vec<u8>, kick: &StoredKick) {
    let flags = u8::from(kick.platform.is_some()) * FLAG_PLATFORM + u8::from(kick.session.is_some()) * FLAG_SESSION;
    out.put_u8(flags);
    signed(out, kick.at.as_millis());
    signed(out, kick.until.as_millis().wrapping_sub(kick.at.as_millis()));
    if let Some(platform) = &kick.platform {
        text(out, platform.as_str());
    }
    if let Some(session) = kick.session {
        number(out, session.gateway.node.into());
        number(out, session.gateway.incarnation);
        number(out, session.number);
    }
    text(out, &kick.reason);
}

fn read_kick(rest: &mut &[u8]) -> Option<StoredKick> {
    let flags = take_byte(rest)?;
    let at = take_signed(rest)?;
    let until = at.wrapping_add(take_signed(rest)?);
    let platform = match flags & FLAG_PLATFORM {
        0 => None,
        _ => Some(Platform::new(take_text(rest)?).ok()?),
    };
    let session = match flags & FLAG_SESSION {
        0 => None,
        _ => {
            let node = u16::try_from(take_number(rest)?).ok()?;
            let gateway = GatewayId { node, incarnation: take_number(rest)? };
            Some(SessionId { gateway, number: take_number(rest)? })
        }
    };
    let reason = take_text(rest)?.into();
    Some(StoredKick { at: Timestamp::from_millis(at), until: Timestamp::from_millis(until), platform, session, reason })
}

/// Seven bits per byte, the lowest bits first.
pub(in crate::carrier) fn number(out: &mut Vec<u8>, value: u64) {
    encode_varint(value, out);
}

/// Zigzag: small absolute values are short.
fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(in crate::carrier) fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    rest.try_get_u8().ok()
}

fn take_word(rest: &mut &[u8]) -> Option<u64> {
    rest.try_get_u64_le().ok()
}

pub(in crate::carrier) fn take_number(rest: &mut &[u8]) -> Option<u64> {
    decode_varint(rest).ok()
}

fn take_signed(rest: &mut &[u8]) -> Option<i64> {
    let coded = take_number(rest)?;
    Some((coded >> 1) as i64 ^ -((coded & 1) as i64))
}

/// Reads a count. Each element takes at least one byte, so a corrupted count cannot cause a large allocation.
fn count(rest: &mut &[u8]) -> Option<usize> {
    let count = usize::try_from(take_number(rest)?).ok()?;
    (count <= rest.len() + 1).then_some(count)
}

pub(in crate::carrier) fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::try_from(take_number(rest)?).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    std::str::from_utf8(text).ok()
}
