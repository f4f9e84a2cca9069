//! A gateway's book: who is there, what was gathered since the last packet, and the packets that are kept for those who missed them.
//!
//! Pure: it is told comings and goings and the time. The table and the numbers are one: at any moment the table is exactly what all packets
//! up to the last number and what is gathered say, so a picture is as of a number, with nothing half in it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};

use super::limits::NEWS_PER_PACKET_MAX;
use super::packet::{Answer, AskGateway, News, Packet, Wanted, shard_of};

/// What a packet costs in memory beside its news, and a piece of news beside its texts.
const PACKET_BYTES: usize = 96;
const NEWS_BYTES: usize = 160;

/// How long and how much a book keeps. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BookLimits {
    pub keep_ms: u64,
    pub keep_bytes: usize,
    /// The longest that passes without a packet, an empty one if need be.
    pub heartbeat_ms: u64,
}

pub struct Book {
    limits: BookLimits,
    address: Arc<str>,
    /// `None` until the node has joined for the first time.
    gateway: Option<GatewayId>,
    /// By the session's number.
    there: HashMap<u64, (Uid, OnlineSession)>,
    gathered: Vec<News>,
    /// The number of the last packet.
    last: u64,
    last_at_ms: u64,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Packets that nobody has taken to be sent yet.
    unsent: Vec<Arc<Packet>>,
}

struct Kept {
    packet: Arc<Packet>,
    at_ms: u64,
    bytes: usize,
}

impl Book {
    pub fn new(limits: BookLimits, address: &str) -> Self {
        Self {
            limits,
            address: address.into(),
            gateway: None,
            there: HashMap::new(),
            gathered: Vec::new(),
            last: 0,
            last_at_ms: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            unsent: Vec::new(),
        }
    }

    pub fn gateway(&self) -> Option<GatewayId> {
        self.gateway
    }

    /// Sessions that are there.
    pub fn len(&self) -> usize {
        self.there.len()
    }

    pub fn is_empty(&self) -> bool {
        self.there.is_empty()
    }

    /// Packets and their bytes that are kept.
    pub fn kept(&self) -> (usize, usize) {
        (self.kept.len(), self.kept_bytes)
    }

    pub fn came(&mut self, uid: &Uid, mut session: OnlineSession) {
        if let Some(gateway) = self.gateway {
            session.session.gateway = gateway;
            self.gathered.push(News { uid: uid.clone(), session: session.clone(), gone_at: None });
        }
        self.there.insert(session.session.number, (uid.clone(), session));
    }

    pub fn went(&mut self, session: SessionId, at: Timestamp) {
        let Some((uid, session)) = self.there.remove(&session.number) else { return };
        if self.gateway.is_some() {
            self.gathered.push(News { uid, session, gone_at: Some(at) });
        }
    }

    /// It is this incarnation from now on: numbers begin anew, and whoever hears of it asks for the whole picture.
    pub fn reincarnate(&mut self, gateway: GatewayId, now_ms: u64) {
        if self.gateway == Some(gateway) {
            return;
        }
        self.gateway = Some(gateway);
        self.there.values_mut().for_each(|(_, session)| session.session.gateway = gateway);
        self.gathered.clear();
        self.kept.clear();
        self.kept_bytes = 0;
        self.unsent.clear();
        self.last = 0;
        self.close_packet(now_ms);
    }

    /// The packets that are to be sent now: what was gathered, or an empty one where there was none for too long.
    pub fn cut(&mut self, now_ms: u64) -> Vec<Arc<Packet>> {
        if self.gateway.is_some() {
            self.close_gathered(now_ms);
            if now_ms >= self.last_at_ms + self.limits.heartbeat_ms {
                self.close_packet(now_ms);
            }
        }
        std::mem::take(&mut self.unsent)
    }

    /// Answers a writer.
    pub fn answer(&mut self, ask: &AskGateway, now_ms: u64) -> Answer {
        if self.gateway != Some(ask.gateway) {
            return Answer::Other(self.gateway);
        }
        let is_asked = |uid: &Uid| shard_of(uid, ask.shards) == ask.shard;
        if let Wanted::Packets(numbers) = &ask.wanted {
            let found: Option<Vec<&Arc<Packet>>> = numbers.iter().map(|number| self.find(*number)).collect();
            if let Some(found) = found {
                return Answer::Packets(found.into_iter().map(|packet| part_of(packet, is_asked)).collect());
            }
        }
        // What is gathered becomes a packet, so that the table is as of its number.
        self.close_gathered(now_ms);
        let sessions = self.there.values().filter(|(uid, _)| is_asked(uid)).cloned().collect();
        Answer::Picture { as_of: self.last, sessions }
    }

    fn find(&self, number: u64) -> Option<&Arc<Packet>> {
        let first = self.kept.front()?.packet.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.kept.get(index).map(|kept| &kept.packet)
    }

    fn close_gathered(&mut self, now_ms: u64) {
        while !self.gathered.is_empty() {
            self.close_packet(now_ms);
        }
    }

    /// One packet of what was gathered, or an empty one.
    fn close_packet(&mut self, now_ms: u64) {
        let Some(gateway) = self.gateway else { return };
        let count = self.gathered.len().min(NEWS_PER_PACKET_MAX);
        let rest = self.gathered.split_off(count);
        let mut news = std::mem::replace(&mut self.gathered, rest);
        // It is kept for a while.
        news.shrink_to_fit();
        self.last += 1;
        self.last_at_ms = now_ms;
        let bytes = PACKET_BYTES + news.iter().map(bytes_of).sum::<usize>();
        let packet = Arc::new(Packet { gateway, address: self.address.clone(), number: self.last, news });
        self.unsent.push(packet.clone());
        self.kept.push_back(Kept { packet, at_ms: now_ms, bytes });
        self.kept_bytes += bytes;
        while let Some(oldest) = self.kept.front() {
            let is_old = now_ms > oldest.at_ms + self.limits.keep_ms;
            if !is_old && self.kept_bytes <= self.limits.keep_bytes {
                break;
            }
            self.kept_bytes -= oldest.bytes;
            self.kept.pop_front();
        }
    }
}

fn bytes_of(news: &News) -> usize {
    NEWS_BYTES + news.uid.as_str().len() + news.session.device.len()
}

/// The same packet with those users' news only.
pub fn part_of(packet: &Packet, is_asked: impl Fn(&Uid) -> bool) -> Packet {
    Packet {
        gateway: packet.gateway,
        address: packet.address.clone(),
        number: packet.number,
        news: packet.news.iter().filter(|news| is_asked(&news.uid)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::people::Platform;

    use super::*;

    const ME: GatewayId = GatewayId { node: 1, incarnation: 10 };
    const LIMITS: BookLimits = BookLimits { keep_ms: 60_000, keep_bytes: 1 << 20, heartbeat_ms: 1_000 };

    fn uid(number: u64) -> Uid {
        Uid::new(&format!("user-{number}")).unwrap()
    }

    fn session(number: u64) -> OnlineSession {
        let nobody = GatewayId { node: 0, incarnation: 0 };
        OnlineSession {
            session: SessionId { gateway: nobody, number },
            platform: Platform::new("web").unwrap(),
            device: "".into(),
            since: Timestamp::from_millis(0),
        }
    }

    fn book() -> Book {
        let mut book = Book::new(LIMITS, "here");
        book.reincarnate(ME, 0);
        book.cut(0);
        book
    }

    fn ask(wanted: Wanted) -> AskGateway {
        AskGateway { gateway: ME, address: "here".into(), shard: 0, shards: 1, wanted }
    }

    fn picture(book: &mut Book, now_ms: u64) -> (u64, Vec<u64>) {
        let Answer::Picture { as_of, sessions } = book.answer(&ask(Wanted::Picture), now_ms) else {
            panic!("no picture")
        };
        let mut numbers: Vec<u64> = sessions.iter().map(|(_, session)| session.session.number).collect();
        numbers.sort();
        (as_of, numbers)
    }

    #[test]
    fn what_happens_in_a_moment_is_one_packet_and_silence_is_an_empty_one() {
        let mut book = book();
        book.came(&uid(1), session(1));
        book.went(session(1).session, Timestamp::from_millis(5));
        let packets = book.cut(50);
        assert_eq!(packets.len(), 1);
        assert_eq!((packets[0].number, packets[0].news.len()), (2, 2));
        assert!(packets[0].news.iter().all(|news| news.session.session.gateway == ME));
        assert!(book.cut(100).is_empty());
        let packets = book.cut(1_050);
        assert_eq!((packets[0].number, packets[0].news.len()), (3, 0));
    }

    #[test]
    fn more_than_a_packet_takes_goes_into_the_next_numbers() {
        let mut book = book();
        (0..NEWS_PER_PACKET_MAX as u64 + 1).for_each(|number| book.came(&uid(number), session(number)));
        let packets = book.cut(50);
        let sizes: Vec<(u64, usize)> = packets.iter().map(|packet| (packet.number, packet.news.len())).collect();
        assert_eq!(sizes, [(2, NEWS_PER_PACKET_MAX), (3, 1)]);
    }

    #[test]
    fn a_picture_has_everything_up_to_its_number_and_what_was_gathered_gets_one() {
        let mut book = book();
        book.came(&uid(1), session(1));
        assert_eq!(picture(&mut book, 10), (2, vec![1]));
        // The packet with that number is still sent to all.
        assert_eq!(book.cut(50)[0].number, 2);
        book.went(session(1).session, Timestamp::from_millis(0));
        book.came(&uid(2), session(2));
        assert_eq!(picture(&mut book, 60), (3, vec![2]));
    }

    #[test]
    fn packets_that_are_kept_are_given_and_where_one_is_gone_the_picture_is() {
        let mut book = book();
        book.came(&uid(1), session(1));
        book.cut(50);
        let Answer::Packets(packets) = book.answer(&ask(Wanted::Packets(vec![1, 2])), 60) else { panic!("no packets") };
        assert_eq!(packets.iter().map(|packet| packet.number).collect::<Vec<_>>(), [1, 2]);
        book.cut(70_000);
        assert_eq!(book.kept().0, 1);
        let answer = book.answer(&ask(Wanted::Packets(vec![2])), 70_000);
        assert!(matches!(answer, Answer::Picture { as_of: 3, .. }), "{answer:?}");
        // A number that was never given is no reason to make one up.
        let answer = book.answer(&ask(Wanted::Packets(vec![9])), 70_000);
        assert!(matches!(answer, Answer::Picture { as_of: 3, .. }), "{answer:?}");
    }

    #[test]
    fn what_is_kept_is_bounded_by_bytes() {
        let mut book = Book::new(BookLimits { keep_bytes: 10_000, ..LIMITS }, "here");
        book.reincarnate(ME, 0);
        for number in 0..1_000 {
            book.came(&uid(number), session(number));
            book.cut(number);
            assert!(book.kept().1 <= 10_000);
        }
        assert!(book.kept().0 > 10);
    }

    #[test]
    fn a_new_incarnation_begins_its_numbers_anew_and_has_the_same_sessions() {
        let mut book = book();
        book.came(&uid(1), session(1));
        book.cut(50);
        let next = GatewayId { node: 2, incarnation: 11 };
        book.reincarnate(next, 60);
        let packets = book.cut(60);
        assert_eq!((packets[0].gateway, packets[0].number, packets[0].news.len()), (next, 1, 0));
        assert_eq!(book.answer(&ask(Wanted::Picture), 60), Answer::Other(Some(next)));
        let Answer::Picture { as_of: 1, sessions } =
            book.answer(&AskGateway { gateway: next, ..ask(Wanted::Picture) }, 60)
        else {
            panic!("no picture")
        };
        assert_eq!(sessions[0].1.session, SessionId { gateway: next, number: 1 });
    }

    #[test]
    fn who_came_before_the_node_joined_is_in_the_first_picture() {
        let mut book = Book::new(LIMITS, "here");
        book.came(&uid(1), session(1));
        assert!(book.cut(2_000).is_empty());
        assert_eq!(book.answer(&ask(Wanted::Picture), 2_000), Answer::Other(None));
        book.reincarnate(ME, 2_000);
        assert_eq!(picture(&mut book, 2_000), (1, vec![1]));
    }
}
