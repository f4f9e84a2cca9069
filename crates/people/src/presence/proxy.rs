//! The proxy: spreads a packet over the writers of every data centre, by the users' shards. Stateless; a gateway uses two proxies.
//!
//! Every number goes to every writer, empty if it has none of the writer's users. So a missing number is always a gap.

use std::sync::Arc;

use super::packet::{Packet, SessionChange, ShardPacket, shard_of};
use super::remote::{PeerMessage, PeerQueues};
use super::settings::{Layout, NodeLocation};
use super::writer::WriterQueues;

/// The parts of a packet for each location, in the order of the layout.
pub fn spread(packet: &Packet, layout: &Layout) -> Vec<Vec<ShardPacket>> {
    let mut by_place: Vec<Vec<ShardPacket>> = layout.places().iter().map(|_| Vec::new()).collect();
    for (centre, places) in layout.centres().iter().enumerate() {
        let shards = places.len() as u32;
        let mut parts: Vec<Vec<SessionChange>> = places.iter().map(|_| Vec::new()).collect();
        for news in &packet.news {
            parts[shard_of(&news.uid, shards) as usize].push(news.clone());
        }
        for (shard, (place, news)) in places.iter().zip(parts).enumerate() {
            let packet =
                Packet { gateway: packet.gateway, address: packet.address.clone(), number: packet.number, news };
            by_place[*place].push(ShardPacket { centre: centre as u32, shard: shard as u32, packet });
        }
    }
    by_place
}

/// Passes parts of packets to the writers of this process directly, and to others through their queues.
pub struct Proxy {
    layout: Arc<Layout>,
    writers: Arc<WriterQueues>,
    peer_queues: Arc<PeerQueues>,
}

impl Proxy {
    pub fn new(layout: Arc<Layout>, writers: Arc<WriterQueues>, peer_queues: Arc<PeerQueues>) -> Self {
        Self { layout, writers, peer_queues }
    }

    /// Spreads a packet. Never waits.
    pub fn relay(&self, packet: &Packet) {
        for (place, packets) in self.layout.places().iter().zip(spread(packet, &self.layout)) {
            match place {
                NodeLocation::ThisProcess => packets.into_iter().for_each(|packet| self.writers.take(packet)),
                NodeLocation::At(address) => self.peer_queues.post(address, PeerMessage::Report(packets)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::people::GatewayId;

    use super::*;
    use crate::presence::settings::PresenceSettings;

    fn packet(users: u64) -> Packet {
        let gateway = GatewayId { node: 1, incarnation: 7 };
        let news = (0..users).map(|number| SessionChange::arrival(gateway, number));
        Packet { gateway, address: "g".into(), number: 3, news: news.collect() }
    }

    fn layout() -> Layout {
        let writers = vec![vec![String::new(), "b".to_owned()], vec!["c".to_owned(), "d".to_owned(), "c".to_owned()]];
        Layout::of(&PresenceSettings { writers, ..PresenceSettings::default() }, "a")
    }

    #[test]
    fn every_writer_of_every_data_centre_gets_every_number() {
        for users in [0, 1] {
            let spread = spread(&packet(users), &layout());
            let mut shards: Vec<(u32, u32)> = Vec::new();
            for each in spread.into_iter().flatten() {
                assert_eq!(each.packet.number, 3);
                shards.push((each.centre, each.shard));
            }
            shards.sort();
            assert_eq!(shards, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]);
        }
    }

    #[test]
    fn each_data_centre_gets_each_change_once_in_the_users_shard() {
        let packet = packet(100);
        let layout = layout();
        for centre in 0..2 {
            let parts = spread(&packet, &layout).into_iter().flatten().filter(|each| each.centre == centre);
            let mut found = 0;
            for part in parts {
                let shards = layout.shards(centre as usize);
                assert!(part.packet.news.iter().all(|news| shard_of(&news.uid, shards) == part.shard));
                found += part.packet.news.len();
            }
            assert_eq!(found, 100);
        }
    }
}
