//! A gateway's packet log: the table of its sessions, the changes since the last packet, and recent packets for writers that missed them.
//!
//! Pure: changes and the time are passed in. The table always equals the sum of all packets up to the last number and the gathered changes.
//! So a snapshot belongs to exactly one number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};

use super::limits::NEWS_PER_PACKET_MAX;
use super::packet::{GatewayQuery, GatewayReply, Packet, QueryKind, SessionChange, shard_of};

/// Estimated memory of a packet without its changes, and of a change without its texts.
const PACKET_BYTES: usize = 96;
const NEWS_BYTES: usize = 160;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketLogLimits {
    pub keep_ms: u64,
    pub keep_bytes: usize,
    /// The longest time between two packets; an empty one is sent if necessary.
    pub heartbeat_ms: u64,
}

pub struct PacketLog {
    limits: PacketLogLimits,
    address: Arc<str>,
    /// `None` before the node has joined for the first time.
    gateway: Option<GatewayId>,
    /// Sessions, by number.
    there: HashMap<u64, (Uid, OnlineSession)>,
    gathered: Vec<SessionChange>,
    last: u64,
    last_at_ms: u64,
    kept: VecDeque<RetainedPacket>,
    kept_bytes: usize,
    /// Packets that are ready to be sent.
    unsent: Vec<Arc<Packet>>,
}

struct RetainedPacket {
    packet: Arc<Packet>,
    at_ms: u64,
    bytes: usize,
}

impl PacketLog {
    pub fn new(limits: PacketLogLimits, address: &str) -> Self {
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

    pub fn len(&self) -> usize {
        self.there.len()
    }

    pub fn is_empty(&self) -> bool {
        self.there.is_empty()
    }

    /// The number and the bytes of retained packets.
    pub fn kept(&self) -> (usize, usize) {
        (self.kept.len(), self.kept_bytes)
    }

    pub fn came(&mut self, uid: &Uid, mut session: OnlineSession) {
        if let Some(gateway) = self.gateway {
            session.session.gateway = gateway;
            self.gathered.push(SessionChange { uid: uid.clone(), session: session.clone(), gone_at: None });
        }
        self.there.insert(session.session.number, (uid.clone(), session));
    }

    pub fn went(&mut self, session: SessionId, at: Timestamp) {
        let Some((uid, session)) = self.there.remove(&session.number) else { return };
        if self.gateway.is_some() {
            self.gathered.push(SessionChange { uid, session, gone_at: Some(at) });
        }
    }

    /// Switches to a new incarnation. Numbers restart, and writers will request a snapshot.
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

    /// The packets to send now: the gathered changes, or an empty packet if the last one is too old.
    pub fn cut(&mut self, now_ms: u64) -> Vec<Arc<Packet>> {
        if self.gateway.is_some() {
            self.close_gathered(now_ms);
            if now_ms >= self.last_at_ms + self.limits.heartbeat_ms {
                self.close_packet(now_ms);
            }
        }
        std::mem::take(&mut self.unsent)
    }

    pub fn answer(&mut self, ask: &GatewayQuery, now_ms: u64) -> GatewayReply {
        if self.gateway != Some(ask.gateway) {
            return GatewayReply::OtherIncarnation(self.gateway);
        }
        let is_asked = |uid: &Uid| shard_of(uid, ask.shards) == ask.shard;
        if let QueryKind::Packets(numbers) = &ask.wanted {
            let found: Option<Vec<&Arc<Packet>>> = numbers.iter().map(|number| self.find(*number)).collect();
            if let Some(found) = found {
                return GatewayReply::Packets(found.into_iter().map(|packet| part_of(packet, is_asked)).collect());
            }
        }
        // Gathered changes become a packet first, so that the table belongs to its number.
        self.close_gathered(now_ms);
        let sessions = self.there.values().filter(|(uid, _)| is_asked(uid)).cloned().collect();
        GatewayReply::Snapshot { as_of: self.last, sessions }
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

    /// Makes one packet of the gathered changes, or an empty one.
    fn close_packet(&mut self, now_ms: u64) {
        let Some(gateway) = self.gateway else { return };
        let count = self.gathered.len().min(NEWS_PER_PACKET_MAX);
        let rest = self.gathered.split_off(count);
        let mut news = std::mem::replace(&mut self.gathered, rest);
        // The packet is retained for a while.
        news.shrink_to_fit();
        self.last += 1;
        self.last_at_ms = now_ms;
        let bytes = PACKET_BYTES + news.iter().map(bytes_of).sum::<usize>();
        let packet = Arc::new(Packet { gateway, address: self.address.clone(), number: self.last, news });
        self.unsent.push(packet.clone());
        self.kept.push_back(RetainedPacket { packet, at_ms: now_ms, bytes });
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

fn bytes_of(news: &SessionChange) -> usize {
    NEWS_BYTES + news.uid.as_str().len() + news.session.device.len()
}

/// The packet with only the changes of those users.
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
    use super::*;

    const ME: GatewayId = GatewayId { node: 1, incarnation: 10 };
    const LIMITS: PacketLogLimits = PacketLogLimits { keep_ms: 60_000, keep_bytes: 1 << 20, heartbeat_ms: 1_000 };

    fn uid(number: u64) -> Uid {
        Uid::new(&format!("user-{number}")).unwrap()
    }

    fn session(number: u64) -> OnlineSession {
        SessionChange::arrival(GatewayId { node: 0, incarnation: 0 }, number).session
    }

    fn packet_log() -> PacketLog {
        let mut packet_log = PacketLog::new(LIMITS, "here");
        packet_log.reincarnate(ME, 0);
        packet_log.cut(0);
        packet_log
    }

    fn ask(wanted: QueryKind) -> GatewayQuery {
        GatewayQuery { gateway: ME, address: "here".into(), shard: 0, shards: 1, wanted }
    }

    fn snapshot(packet_log: &mut PacketLog, now_ms: u64) -> (u64, Vec<u64>) {
        let GatewayReply::Snapshot { as_of, sessions } = packet_log.answer(&ask(QueryKind::Snapshot), now_ms) else {
            panic!("not a snapshot")
        };
        let mut numbers: Vec<u64> = sessions.iter().map(|(_, session)| session.session.number).collect();
        numbers.sort();
        (as_of, numbers)
    }

    #[test]
    fn simultaneous_changes_are_one_packet_and_silence_is_an_empty_one() {
        let mut packet_log = packet_log();
        packet_log.came(&uid(1), session(1));
        packet_log.went(session(1).session, Timestamp::from_millis(5));
        let packets = packet_log.cut(50);
        assert_eq!(packets.len(), 1);
        assert_eq!((packets[0].number, packets[0].news.len()), (2, 2));
        assert!(packets[0].news.iter().all(|news| news.session.session.gateway == ME));
        assert!(packet_log.cut(100).is_empty());
        let packets = packet_log.cut(1_050);
        assert_eq!((packets[0].number, packets[0].news.len()), (3, 0));
    }

    #[test]
    fn changes_beyond_one_packet_go_into_the_next_numbers() {
        let mut packet_log = packet_log();
        (0..NEWS_PER_PACKET_MAX as u64 + 1).for_each(|number| packet_log.came(&uid(number), session(number)));
        let packets = packet_log.cut(50);
        let sizes: Vec<(u64, usize)> = packets.iter().map(|packet| (packet.number, packet.news.len())).collect();
        assert_eq!(sizes, [(2, NEWS_PER_PACKET_MAX), (3, 1)]);
    }

    #[test]
    fn a_snapshot_gives_gathered_changes_a_number_and_includes_them() {
        let mut packet_log = packet_log();
        packet_log.came(&uid(1), session(1));
        assert_eq!(snapshot(&mut packet_log, 10), (2, vec![1]));
        // The packet with that number is still sent to all writers.
        assert_eq!(packet_log.cut(50)[0].number, 2);
        packet_log.went(session(1).session, Timestamp::from_millis(0));
        packet_log.came(&uid(2), session(2));
        assert_eq!(snapshot(&mut packet_log, 60), (3, vec![2]));
    }

    #[test]
    fn a_query_for_packets_gets_a_snapshot_if_one_is_no_longer_retained() {
        let mut packet_log = packet_log();
        packet_log.came(&uid(1), session(1));
        packet_log.cut(50);
        let GatewayReply::Packets(packets) = packet_log.answer(&ask(QueryKind::Packets(vec![1, 2])), 60) else {
            panic!("not packets")
        };
        assert_eq!(packets.iter().map(|packet| packet.number).collect::<Vec<_>>(), [1, 2]);
        packet_log.cut(70_000);
        assert_eq!(packet_log.kept().0, 1);
        let answer = packet_log.answer(&ask(QueryKind::Packets(vec![2])), 70_000);
        assert!(matches!(answer, GatewayReply::Snapshot { as_of: 3, .. }), "{answer:?}");
        // A number that was never assigned gets a snapshot too.
        let answer = packet_log.answer(&ask(QueryKind::Packets(vec![9])), 70_000);
        assert!(matches!(answer, GatewayReply::Snapshot { as_of: 3, .. }), "{answer:?}");
    }

    #[test]
    fn retained_packets_are_bounded_by_bytes() {
        let mut packet_log = PacketLog::new(PacketLogLimits { keep_bytes: 10_000, ..LIMITS }, "here");
        packet_log.reincarnate(ME, 0);
        for number in 0..1_000 {
            packet_log.came(&uid(number), session(number));
            packet_log.cut(number);
            assert!(packet_log.kept().1 <= 10_000);
        }
        assert!(packet_log.kept().0 > 10);
    }

    #[test]
    fn a_new_incarnation_restarts_its_numbers_with_the_same_sessions() {
        let mut packet_log = packet_log();
        packet_log.came(&uid(1), session(1));
        packet_log.cut(50);
        let next = GatewayId { node: 2, incarnation: 11 };
        packet_log.reincarnate(next, 60);
        let packets = packet_log.cut(60);
        assert_eq!((packets[0].gateway, packets[0].number, packets[0].news.len()), (next, 1, 0));
        assert_eq!(packet_log.answer(&ask(QueryKind::Snapshot), 60), GatewayReply::OtherIncarnation(Some(next)));
        let GatewayReply::Snapshot { as_of: 1, sessions } =
            packet_log.answer(&GatewayQuery { gateway: next, ..ask(QueryKind::Snapshot) }, 60)
        else {
            panic!("not a snapshot")
        };
        assert_eq!(sessions[0].1.session, SessionId { gateway: next, number: 1 });
    }

    #[test]
    fn sessions_from_before_the_join_are_in_the_first_snapshot() {
        let mut packet_log = PacketLog::new(LIMITS, "here");
        packet_log.came(&uid(1), session(1));
        assert!(packet_log.cut(2_000).is_empty());
        assert_eq!(packet_log.answer(&ask(QueryKind::Snapshot), 2_000), GatewayReply::OtherIncarnation(None));
        packet_log.reincarnate(ME, 2_000);
        assert_eq!(snapshot(&mut packet_log, 2_000), (1, vec![1]));
    }
}
