//! Tests of boxes: what they store, lose and remove.

use std::sync::Arc;

use proptest::prelude::*;
use whimbrel_model::people::{GatewayId, Platform, PlatformSettings, SessionId};
use whimbrel_model::{SessionsRule, Timestamp};

use super::*;

fn platform(name: &str) -> Platform {
    Platform::new(name).unwrap()
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn slot(seq: u64) -> InboxSlot {
    let (sent_at, expires_at) = (at(seq as i64), at(1_000_000));
    InboxSlot { seq, sent_at, expires_at, filter: None, collapse: 0, bytes: 10, shared: false }
}

fn only(seq: u64, names: &[&str]) -> InboxSlot {
    let filter = PlatformFilter { only: Some(names.iter().map(|name| platform(name)).collect()), except: Vec::new() };
    InboxSlot { filter: Some(Arc::new(filter)), ..slot(seq) }
}

fn rules(max_stored: u32) -> Box<PlatformRules> {
    let settings = Arc::new(PlatformSettings { max_stored, ..PlatformSettings::default() });
    let deaf = Arc::new(PlatformSettings { store: false, ..PlatformSettings::default() });
    Box::new(move |platform| if platform.as_str() == "tv" { deaf.clone() } else { settings.clone() })
}

fn with_seats(names: &[&str]) -> UserBox {
    let mut user_box = UserBox::default();
    for name in names {
        user_box.seat_or_new(&platform(name), "", at(0), |_| false);
    }
    user_box
}

fn seqs(user_box: &UserBox) -> Vec<u64> {
    user_box.slots.iter().map(|slot| slot.seq).collect()
}

#[test]
fn a_message_stays_until_every_seat_that_it_is_for_has_acknowledged_it() {
    let (rules, mut user_box) = (rules(100), with_seats(&["ios", "web"]));
    user_box.store(slot(5), &*rules);
    user_box.store(only(7, &["web"]), &*rules);
    assert_eq!(user_box.acknowledge(1, 7, &*rules).iter().map(|slot| slot.seq).collect::<Vec<_>>(), [7]);
    assert_eq!(seqs(&user_box), [5], "ios has not acknowledged it");
    assert_eq!(user_box.acknowledge(0, 5, &*rules).len(), 1);
    assert!(user_box.slots.is_empty());
}

#[test]
fn a_named_platform_without_a_seat_has_not_acknowledged() {
    let (rules, mut user_box) = (rules(100), with_seats(&["web"]));
    user_box.store(only(3, &["ios", "web"]), &*rules);
    assert!(user_box.acknowledge(0, 3, &*rules).is_empty());
    let ios = user_box.seat_or_new(&platform("ios"), "", at(0), |_| false);
    assert!(user_box.seats[ios].waits_for(&user_box.slots[0]), "a new seat starts with what is still stored for it");
    assert_eq!(user_box.acknowledge(ios, 3, &*rules).len(), 1);
}

#[test]
fn a_message_for_all_waits_for_a_user_without_seats() {
    let (rules, mut user_box) = (rules(100), UserBox::default());
    assert!(user_box.store(slot(1), &*rules).is_empty());
    assert_eq!(seqs(&user_box), [1]);
}

#[test]
fn a_refolded_message_is_not_stored_for_a_platform_without_storage() {
    let (rules, mut user_box) = (rules(100), with_seats(&["tv", "web"]));
    user_box.acknowledge(1, 7, &*rules);
    assert_eq!(user_box.store(slot(5), &*rules).len(), 1);
    assert!(user_box.slots.is_empty());
}

#[test]
fn a_platform_without_storage_does_not_hold_slots() {
    let (rules, mut user_box) = (rules(100), with_seats(&["tv", "web"]));
    user_box.store(slot(1), &*rules);
    assert_eq!(user_box.acknowledge(1, 1, &*rules).len(), 1);
}

#[test]
fn acknowledgements_move_the_cursor_only_forwards() {
    let (rules, mut user_box) = (rules(100), with_seats(&["web"]));
    (1..=4).for_each(|seq| drop(user_box.store(slot(seq), &*rules)));
    user_box.acknowledge(0, 3, &*rules);
    user_box.acknowledge(0, 1, &*rules);
    assert_eq!((user_box.seats[0].cursor, seqs(&user_box)), (3, vec![4]));
}

#[test]
fn a_seat_beyond_its_bound_loses_the_oldest_messages_and_notes_the_loss() {
    let (rules, mut user_box) = (rules(3), with_seats(&["web"]));
    let gone: Vec<u64> = (1..=5).flat_map(|seq| user_box.store(slot(seq), &*rules)).map(|slot| slot.seq).collect();
    assert_eq!((gone, seqs(&user_box)), (vec![1, 2], vec![3, 4, 5]));
    assert_eq!(user_box.seats[0].lost, [(1, 2)]);
}

#[test]
fn the_bound_of_one_seat_does_not_affect_another_seat() {
    let small = Arc::new(PlatformSettings { max_stored: 2, ..PlatformSettings::default() });
    let large = Arc::new(PlatformSettings { max_stored: 10, ..PlatformSettings::default() });
    let rules = move |platform: &Platform| if platform.as_str() == "ios" { small.clone() } else { large.clone() };
    let mut user_box = with_seats(&["ios", "web"]);
    (1..=6).for_each(|seq| drop(user_box.store(slot(seq), &rules)));
    assert_eq!(user_box.waiting(&user_box.seats[0]), 2);
    assert_eq!(user_box.waiting(&user_box.seats[1]), 6);
    assert_eq!((user_box.seats[0].lost.clone(), user_box.seats[1].lost.clone()), (vec![(1, 4)], vec![]));
}

#[test]
fn a_box_without_seats_is_bounded() {
    let (rules, mut user_box) = (rules(3), UserBox::default());
    (1..=1_500).for_each(|seq| drop(user_box.store(slot(seq), &*rules)));
    assert_eq!(user_box.slots.len(), PlatformSettings::default().max_stored as usize);
    let mut named = UserBox::default();
    (1..=1_500).for_each(|seq| drop(named.store(only(seq, &["ios"]), &*rules)));
    assert!(named.slots.len() <= PlatformSettings::default().max_stored as usize);
}

#[test]
fn a_flood_for_a_platform_without_a_seat_leaves_a_seat_within_its_bound_alone() {
    let (rules, mut user_box) = (rules(10), with_seats(&["web"]));
    (1..=5).for_each(|seq| drop(user_box.store(only(seq, &["web", "ios"]), &*rules)));
    let gone: Vec<u64> =
        (6..=100).flat_map(|seq| user_box.store(only(seq, &["ios"]), &*rules)).map(|slot| slot.seq).collect();
    assert_eq!((user_box.waiting(&user_box.seats[0]), user_box.seats[0].lost.clone()), (5, vec![]));
    assert_eq!(gone, (6..=85).collect::<Vec<u64>>(), "the oldest messages of the flood are removed");
    assert_eq!(user_box.slots.len(), 20, "the box holds at most the bounds of both platforms");
}

#[test]
fn a_newer_message_replaces_an_older_one_with_the_same_collapse_key() {
    let (rules, mut user_box) = (rules(100), with_seats(&["web"]));
    for (seq, collapse) in [(1, 9), (2, 0), (3, 9)] {
        user_box.store(InboxSlot { collapse, ..slot(seq) }, &*rules);
    }
    assert_eq!((seqs(&user_box), user_box.seats[0].lost.clone()), (vec![2, 3], vec![(1, 1)]));
}

#[test]
fn a_range_of_losses_never_spans_a_waiting_message() {
    let (rules, mut user_box) = (rules(100), with_seats(&["web"]));
    for (seq, collapse) in [(1, 7), (2, 0), (3, 8), (4, 7), (5, 8)] {
        user_box.store(InboxSlot { collapse, ..slot(seq) }, &*rules);
    }
    assert_eq!(seqs(&user_box), [2, 4, 5]);
    assert_eq!(user_box.seats[0].lost, [(1, 1), (3, 3)]);
}

#[test]
fn expired_messages_are_removed_and_a_platform_may_have_a_shorter_ttl() {
    let short = Arc::new(PlatformSettings { ttl_ms: 50, ..PlatformSettings::default() });
    let long = Arc::new(PlatformSettings::default());
    let rules = move |platform: &Platform| if platform.as_str() == "ios" { short.clone() } else { long.clone() };
    let mut user_box = with_seats(&["ios", "web"]);
    user_box.store(InboxSlot { expires_at: at(20), ..slot(1) }, &rules);
    user_box.store(slot(2), &rules);
    let gone: Vec<u64> = user_box.expire(&rules, at(60)).gone.iter().map(|slot| slot.seq).collect();
    assert_eq!((gone, seqs(&user_box)), (vec![1], vec![2]));
    assert_eq!((user_box.seats[0].lost.clone(), user_box.seats[1].lost.clone()), (vec![(1, 2)], vec![(1, 1)]));
    assert_eq!(user_box.waiting(&user_box.seats[0]), 0);
    assert_eq!(user_box.waiting(&user_box.seats[1]), 1);
}

#[test]
fn each_of_many_separate_losses_is_noted() {
    let (rules, mut user_box) = (rules(1_000), with_seats(&["web"]));
    for seq in 1..=400 {
        let expires_at = if seq % 2 == 0 { at(1_000_000) } else { at(1_000) };
        user_box.store(InboxSlot { expires_at, sent_at: at(0), ..slot(seq) }, &*rules);
    }
    user_box.expire(&*rules, at(2_000));
    let expected: Vec<(u64, u64)> = (1..=400).step_by(2).map(|seq| (seq, seq)).collect();
    assert_eq!(user_box.seats[0].lost, expected);
    assert_eq!(UserBox::decode(&user_box.encode()).unwrap().seats[0].lost, expected, "also after encoding");
}

#[test]
fn a_platform_without_storage_notes_no_losses() {
    let (rules, mut user_box) = (rules(100), with_seats(&["tv", "web"]));
    for seq in 1..=50 {
        user_box.store(InboxSlot { collapse: seq % 2, ..slot(seq) }, &*rules);
        user_box.acknowledge(1, seq.saturating_sub(2), &*rules);
    }
    assert_eq!(user_box.seats[0].lost, []);
}

#[test]
fn a_push_with_two_ids_is_recognised_under_both_for_64_pushes() {
    let mut user_box = UserBox::default();
    let names = |push: u64| [2 * push, 2 * push + 1].into_iter();
    (1..=64).for_each(|push| assert!(!user_box.is_repeat(names(push))));
    for name in names(1) {
        assert!(user_box.is_repeat(std::iter::once(name)));
    }
}

#[test]
fn a_repeat_is_recognised_under_any_of_its_ids() {
    let mut user_box = UserBox::default();
    let mut is_repeat = |ids: &[u64]| user_box.is_repeat(ids.iter().copied());
    assert!(!is_repeat(&[1, 2]) && is_repeat(&[1]) && is_repeat(&[2]));
    assert!(is_repeat(&[3, 2]) && is_repeat(&[3]), "an id that came with a known one is remembered too");
    (4..200).for_each(|id| assert!(!is_repeat(&[id])));
    assert_eq!(user_box.ids.len(), IDS_REMEMBERED);
}

#[test]
fn seats_are_bounded_and_the_longest_unseen_is_removed_first() {
    let mut user_box = UserBox::default();
    for number in 0..SEATS_MAX as i64 + 5 {
        user_box.seat_or_new(&platform("web"), &format!("d{number}"), at(number), |seat| &*seat.device == "d0");
    }
    assert_eq!(user_box.seats.len(), SEATS_MAX);
    assert!(user_box.seat(&platform("web"), "d0").is_some(), "the seat is taken");
    assert!(user_box.seat(&platform("web"), "d1").is_none());
}

#[test]
fn only_a_platform_with_many_sessions_has_a_seat_for_each_device() {
    let mut settings = PlatformSettings::default();
    assert_eq!(&*seat_device(&settings, "d1"), "");
    settings.sessions = SessionsRule::Many(3);
    assert_eq!(&*seat_device(&settings, "d1"), "d1");
    assert!(!seat_device(&settings, "").is_empty(), "a device without a name has a seat of its own too");
}

#[test]
fn a_box_of_another_version_differs_from_a_malformed_one() {
    assert_eq!(UserBox::decode(&[9]), Err(BadBox::OtherVersion(9)));
    assert_eq!(UserBox::decode(&[]), Err(BadBox::Malformed));
    assert_eq!(UserBox::decode(&[1, 200]), Err(BadBox::Malformed));
}

#[test]
fn boxes_of_earlier_versions_are_decoded() {
    // Zero seats, filters and slots, one id; then, in version 2, zero kicks.
    let first: Vec<u8> = [&[1, 0, 0, 0, 1][..], &7u64.to_le_bytes()].concat();
    let second: Vec<u8> = [&[2, 0, 0, 0, 1][..], &7u64.to_le_bytes(), &[0]].concat();
    let expected = UserBox { ids: [7].into(), ..UserBox::default() };
    assert_eq!(UserBox::decode(&first), Ok(expected.clone()));
    assert_eq!(UserBox::decode(&second), Ok(expected.clone()));
    assert_eq!(expected.encode()[0], 4);
}

#[test]
fn a_seat_of_version_3_decodes_without_exhausted_messages() {
    let mut user_box = with_seats(&["web"]);
    let without = user_box.encode();
    user_box.seats[0].exhausted = 1;
    let with = user_box.encode();
    let at = without.iter().zip(&with).position(|(one, other)| one != other).unwrap();
    let mut third = without.to_vec();
    third.remove(at);
    third[0] = 3;
    assert_eq!(UserBox::decode(&third), UserBox::decode(&without));
}

fn kick(name: Option<&str>, session: Option<u64>, ms: i64) -> StoredKick {
    let gateway = GatewayId { node: 1, incarnation: 7 };
    let session = session.map(|number| SessionId { gateway, number });
    StoredKick { at: at(ms), until: at(1_000_000), platform: name.map(platform), session, reason: "bye".into() }
}

#[test]
fn a_kick_replaces_earlier_kicks_that_it_covers() {
    let mut user_box = UserBox::default();
    for one in [kick(Some("web"), None, 1), kick(Some("ios"), None, 2), kick(None, Some(9), 3), kick(None, None, 4)] {
        user_box.remember_kick(one);
    }
    assert_eq!(
        user_box.kicks,
        [kick(None, Some(9), 3), kick(None, None, 4)],
        "a kick of one session has no time limit"
    );
    user_box.remember_kick(kick(None, None, 3));
    assert_eq!(user_box.kicks.len(), 3, "an earlier kick covers less");
}

#[test]
fn a_box_stores_only_the_latest_kicks() {
    let mut user_box = UserBox::default();
    (0..100).for_each(|number| user_box.remember_kick(kick(None, Some(number), 1)));
    assert_eq!(user_box.kicks.len(), KICKS_MAX);
    let gateway = GatewayId { node: 1, incarnation: 7 };
    let is_kicked = |number| user_box.kicked(&platform("web"), gateway, number, at(9), at(10)).is_some();
    assert!(is_kicked(99) && !is_kicked(0));
}

fn any_kick() -> impl Strategy<Value = StoredKick> {
    let session = (any::<u16>(), any::<u64>(), any::<u64>())
        .prop_map(|(node, incarnation, number)| SessionId { gateway: GatewayId { node, incarnation }, number });
    let parts = (any::<i32>(), any::<u32>(), any::<bool>(), proptest::option::of(session), "[a-z]{0,9}");
    parts.prop_map(|(from, kept, is_of_one, session, reason)| StoredKick {
        at: at(from.into()),
        until: at(i64::from(from) + i64::from(kept)),
        platform: is_of_one.then(|| platform("web")),
        session,
        reason: reason.into(),
    })
}

fn any_box() -> impl Strategy<Value = UserBox> {
    let names = ["ios", "web", "tv"];
    let seat = (0..3usize, "[a-z]{0,4}", any::<u32>(), any::<u16>(), any::<i32>(), 0..3u64).prop_map(
        move |(name, device, cursor, floor, seen, lost)| Seat {
            platform: platform(names[name]),
            device: device.into(),
            cursor: cursor.into(),
            floor: floor.into(),
            seen_at: at(seen.into()),
            exhausted: lost * 7,
            lost: (0..lost).map(|n| (n * 10 + 1, n * 10 + 4)).collect(),
        },
    );
    let slot = (1..1_000u64, any::<i32>(), 0..100_000i64, 0..4usize, any::<u64>(), any::<bool>(), any::<u32>())
        .prop_map(move |(step, sent, ttl, filter, collapse, shared, bytes)| {
            let filter = (filter < 3).then(|| {
                let named = vec![platform(names[filter])];
                let only = (filter != 2).then(|| named.clone());
                Arc::new(PlatformFilter { only, except: if filter == 2 { named } else { Vec::new() } })
            });
            let sent_at = at(sent.into());
            let expires_at = at(i64::from(sent) + ttl);
            let collapse = if collapse % 2 == 0 { 0 } else { collapse };
            InboxSlot { seq: step, sent_at, expires_at, filter, collapse, bytes, shared }
        });
    let parts = (
        proptest::collection::vec(seat, 0..4),
        proptest::collection::vec(slot, 0..20),
        proptest::collection::vec(any::<u64>(), 0..IDS_REMEMBERED),
        proptest::collection::vec(any_kick(), 0..3),
        proptest::option::of(any::<i64>().prop_map(at)),
    );
    parts.prop_map(|(seats, steps, ids, kicks, found_under)| {
        let mut seq = 0;
        let slots = steps.into_iter().map(|slot| {
            seq += slot.seq;
            InboxSlot { seq, ..slot }
        });
        UserBox { seats, slots: slots.collect(), ids: ids.into(), kicks, found_under }
    })
}

proptest! {
    #[test]
    fn a_box_decodes_to_what_was_encoded(user_box in any_box()) {
        prop_assert_eq!(UserBox::decode(&user_box.encode()), Ok(user_box));
    }

    #[test]
    fn malformed_bytes_are_rejected_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = UserBox::decode(&bytes);
    }

    #[test]
    fn every_message_is_acknowledged_waiting_or_noted_as_lost(
        steps in proptest::collection::vec((0..4u8, 0..3u64, 0..3usize), 1..120)
    ) {
        let rules = rules(5);
        let mut user_box = with_seats(&["ios", "web"]);
        let (mut seq, mut sent): (u64, Vec<InboxSlot>) = (0, Vec::new());
        for (what, small, seat) in steps {
            match what {
                0 | 1 => {
                    seq += 1 + small;
                    let filtered = match seat { 0 => only(seq, &["ios"]), 1 => only(seq, &["web"]), _ => slot(seq) };
                    let expires_at = if small == 1 { at(15) } else { at(1_000_000) };
                    let stored = InboxSlot { collapse: small, expires_at, ..filtered };
                    sent.push(stored.clone());
                    user_box.store(stored, &*rules);
                }
                2 => {
                    let seat = seat % 2;
                    let upto = user_box.seats[seat].cursor + small * 2;
                    user_box.acknowledge(seat, upto.min(seq), &*rules);
                }
                _ => drop(user_box.expire(&*rules, at(small as i64 * 10))),
            }
            for seat in &user_box.seats {
                for message in sent.iter().filter(|message| message.is_for(&seat.platform)) {
                    let is_lost = seat.lost.iter().any(|(from, to)| (*from..=*to).contains(&message.seq));
                    let waits = user_box.slots.iter().any(|slot| slot.seq == message.seq) && seat.waits_for(message);
                    prop_assert!(message.seq <= seat.cursor || is_lost || waits, "{} of {:?}", message.seq, seat);
                    prop_assert!(!(waits && is_lost), "{} waits and is lost for {:?}", message.seq, seat);
                }
                prop_assert!(user_box.waiting(seat) <= 5);
                prop_assert!(seat.lost.len() <= user_box.waiting(seat) + 1, "a waiting message must separate two ranges: {:?}", seat);
            }
        }
    }
}

#[test]
fn a_collapse_key_does_not_affect_platforms_that_the_newer_message_is_not_for() {
    let (rules, mut user_box) = (rules(100), with_seats(&["ios", "web"]));
    user_box.store(InboxSlot { collapse: 9, ..only(1, &["web"]) }, &*rules);
    user_box.store(InboxSlot { collapse: 9, ..only(2, &["ios"]) }, &*rules);
    assert_eq!(seqs(&user_box), [1, 2]);
}

#[test]
fn a_seat_with_waiting_messages_is_removed_last() {
    let (rules, mut user_box) = (rules(100), with_seats(&["phone"]));
    user_box.store(only(1, &["phone"]), &*rules);
    for number in 0..2 * SEATS_MAX as i64 {
        user_box.seat_or_new(&platform("tab"), &format!("d{number}"), at(10 + number), |_| false);
    }
    assert!(user_box.seat(&platform("phone"), "").is_some());
    assert_eq!(user_box.seats.len(), SEATS_MAX);
}

#[test]
fn a_message_that_every_seat_has_acknowledged_is_not_stored_again() {
    let (rules, mut user_box) = (rules(100), with_seats(&["web"]));
    user_box.acknowledge(0, 7, &*rules);
    assert_eq!(user_box.store(slot(5), &*rules).len(), 1, "an earlier owner sent it");
    assert!(user_box.slots.is_empty());
    assert!(user_box.store(slot(8), &*rules).is_empty());
}
