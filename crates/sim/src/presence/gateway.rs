//! A gateway's process: its real book, and the truth about who was there at each number.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_people::presence::book::{Book, BookLimits};
use whimbrel_people::presence::packet::{Answer, AskGateway, Packet};

use super::Check;

/// Who is there, by the session's number.
pub type There = BTreeMap<u64, Uid>;

/// Kept so short that packets are gone when they are asked for late.
const BOOK: BookLimits = BookLimits { keep_ms: 4_000, keep_bytes: 16_000, heartbeat_ms: 1_000 };

pub struct SimGateway {
    pub id: GatewayId,
    pub book: Book,
    pub there: There,
    last_session: u64,
}

/// What was true at each number of each incarnation, and since when: the first of them is number one.
#[derive(Default)]
pub struct Truth {
    at: BTreeMap<GatewayId, Vec<(u64, There)>>,
    /// When its process was gone, or its lease for everybody, whichever was first: from then on nobody is there.
    ended: BTreeMap<GatewayId, u64>,
}

impl Truth {
    pub fn at(&self, id: GatewayId, number: u64) -> Option<&There> {
        self.at.get(&id)?.get(usize::try_from(number.checked_sub(1)?).ok()?).map(|(_, there)| there)
    }

    pub fn ends(&mut self, id: GatewayId, at_ms: u64) {
        self.ended.entry(id).or_insert(at_ms);
    }

    /// Every incarnation that there ever was.
    pub fn ids(&self) -> impl Iterator<Item = GatewayId> {
        self.at.keys().copied()
    }

    /// Whether that is who was there at any moment from `since_ms` on.
    pub fn was_so(&self, id: GatewayId, since_ms: u64, is_that: impl Fn(&There) -> bool) -> bool {
        let (nobody, end) = (There::new(), self.ended.get(&id).copied());
        if end.is_some() && is_that(&nobody) {
            return true;
        }
        let end = end.unwrap_or(u64::MAX);
        // From the newest on, each until the one after it.
        let mut until = end;
        for (at, there) in self.at.get(&id).into_iter().flatten().rev().filter(|(at, _)| *at <= end) {
            if until < since_ms {
                return false;
            }
            if is_that(there) {
                return true;
            }
            until = *at;
        }
        until >= since_ms && is_that(&nobody)
    }
}

impl SimGateway {
    pub fn new(id: GatewayId, address: &str, now_ms: u64) -> Self {
        let mut book = Book::new(BOOK, address);
        book.reincarnate(id, now_ms);
        Self { id, book, there: There::new(), last_session: 0 }
    }

    pub fn come(&mut self, uid: &Uid) {
        self.last_session += 1;
        let session = OnlineSession {
            session: SessionId { gateway: self.id, number: self.last_session },
            platform: Platform::new("web").expect("a good name"),
            device: "".into(),
            since: Timestamp::from_millis(0),
        };
        self.there.insert(self.last_session, uid.clone());
        self.book.came(uid, session);
    }

    pub fn go(&mut self, number: u64) {
        self.there.remove(&number);
        self.book.went(SessionId { gateway: self.id, number }, Timestamp::from_millis(0));
    }

    /// It has joined again, as another.
    pub fn reincarnate(&mut self, id: GatewayId, now_ms: u64) {
        self.id = id;
        self.book.reincarnate(id, now_ms);
    }

    /// The packets that are to be sent, their truth written down.
    pub fn cut(&mut self, now_ms: u64, truth: &mut Truth) -> Check<Vec<Arc<Packet>>> {
        let packets = self.book.cut(now_ms);
        let history = truth.at.entry(self.id).or_default();
        for packet in &packets {
            // What was there before an incarnation began is in no packet of it.
            let mut there = match history.last() {
                Some((_, there)) => there.clone(),
                None => self.before(&packets),
            };
            for news in &packet.news {
                match news.gone_at {
                    None => drop(there.insert(news.session.session.number, news.uid.clone())),
                    Some(_) => drop(there.remove(&news.session.session.number)),
                }
            }
            if packet.number != history.len() as u64 + 1 || packet.gateway != self.id {
                return Err(format!("packet {} of {} after {}", packet.number, packet.gateway, history.len()));
            }
            history.push((now_ms, there));
        }
        if !packets.is_empty() && history.last().map(|(_, there)| there) != Some(&self.there) {
            return Err(format!("the packets of {} do not say who is there", self.id));
        }
        Ok(packets)
    }

    /// Answers, and hands out the packets that this closed.
    pub fn answer(&mut self, ask: &AskGateway, now_ms: u64, truth: &mut Truth) -> Check<(Answer, Vec<Arc<Packet>>)> {
        let answer = self.book.answer(ask, now_ms);
        Ok((answer, self.cut(now_ms, truth)?))
    }

    /// Who was there before the first of these packets: what they say, undone from the last to the first.
    fn before(&self, packets: &[Arc<Packet>]) -> There {
        let mut there = self.there.clone();
        for news in packets.iter().flat_map(|packet| &packet.news).rev() {
            match news.gone_at {
                None => drop(there.remove(&news.session.session.number)),
                Some(_) => drop(there.insert(news.session.session.number, news.uid.clone())),
            }
        }
        there
    }
}
