//! The proxy: spreads a packet by the users' hash over the writers of every data centre. It keeps nothing; any number of them may run, and a
//! gateway uses two.
//!
//! Every number goes to every writer, empty where it has none of the writer's users: so a gap that a writer sees is one.

use std::sync::Arc;

use super::packet::{News, Packet, ShardPacket, shard_of};
use super::remote::{Outlets, Post};
use super::settings::{Layout, Place};
use super::writer::WriterDesk;

/// What each place gets of a packet, in the order of the layout's places.
pub fn spread(packet: &Packet, layout: &Layout) -> Vec<Vec<ShardPacket>> {
    let mut by_place: Vec<Vec<ShardPacket>> = layout.places().iter().map(|_| Vec::new()).collect();
    for (centre, places) in layout.centres().iter().enumerate() {
        let shards = places.len() as u32;
        let mut parts: Vec<Vec<News>> = places.iter().map(|_| Vec::new()).collect();
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

/// Spreads packets: to the writers of this process directly, to others through their queues.
pub struct Proxy {
    layout: Arc<Layout>,
    desk: Arc<WriterDesk>,
    outlets: Arc<Outlets>,
}

impl Proxy {
    pub fn new(layout: Arc<Layout>, desk: Arc<WriterDesk>, outlets: Arc<Outlets>) -> Self {
        Self { layout, desk, outlets }
    }

    /// Never waits.
    pub fn relay(&self, packet: &Packet) {
        for (place, packets) in self.layout.places().iter().zip(spread(packet, &self.layout)) {
            match place {
                Place::ThisProcess => packets.into_iter().for_each(|packet| self.desk.take(packet)),
                Place::At(address) => self.outlets.post(address, Post::Report(packets)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::Timestamp;
    use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};

    use super::*;
    use crate::presence::settings::PresenceSettings;

    fn packet(users: u64) -> Packet {
        let gateway = GatewayId { node: 1, incarnation: 7 };
        let news = (0..users).map(|number| News {
            uid: Uid::new(&format!("user-{number}")).unwrap(),
            session: OnlineSession {
                session: SessionId { gateway, number },
                platform: Platform::new("web").unwrap(),
                device: "".into(),
                since: Timestamp::from_millis(0),
            },
            gone_at: None,
        });
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
    fn each_data_centre_gets_each_piece_of_news_once_in_the_users_shard() {
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
