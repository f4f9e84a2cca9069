//! Views of an inbox, page by page.

use std::sync::Arc;

use whimbrel_model::ports::InboxView;

use super::World;
use crate::carrier::settings::CarrierSettings;

const LARGE: usize = 10_000;

/// A user with `count` messages of 10 000 bytes each. A view shows at most 25 000 bytes.
fn world_with(count: usize, is_saved: bool) -> World {
    let mut world = World::new();
    world.settings = Arc::new(CarrierSettings { shown_bytes: 25_000, ..CarrierSettings::default() });
    world.take_over();
    for _ in 0..count {
        world.push(&["u"], "x".repeat(LARGE).leak());
    }
    if is_saved {
        world.wait(1_000);
    }
    world
}

fn seqs(view: &InboxView) -> Vec<u64> {
    view.messages.iter().map(|shown| shown.seq).collect()
}

#[test]
fn a_page_of_large_messages_ends_at_its_byte_bound_with_a_cursor_for_the_next() {
    for is_saved in [false, true] {
        let mut world = world_with(5, is_saved);
        let (mut after, mut pages) = (0, Vec::new());
        loop {
            let view = world.view(after, 1_000);
            assert_eq!(view.stored, 5, "messages beyond the page are counted");
            pages.push(seqs(&view));
            let Some(next) = view.next_after else { break };
            after = next;
        }
        assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]], "saved: {is_saved}");
    }
}

#[test]
fn one_message_is_shown_whatever_its_size() {
    let mut world = World::new();
    world.settings = Arc::new(CarrierSettings { shown_bytes: 1, ..CarrierSettings::default() });
    world.take_over();
    world.push(&["u"], "a");
    world.push(&["u"], "b");
    let view = world.view(0, 10);
    assert_eq!((seqs(&view), view.next_after), (vec![1], Some(1)));
    let view = world.view(1, 10);
    assert_eq!((seqs(&view), view.next_after), (vec![2], None));
}

#[test]
fn the_last_page_has_no_cursor_for_a_next_one() {
    let mut world = world_with(2, false);
    let view = world.view(0, 2);
    assert_eq!((seqs(&view), view.next_after), (vec![1, 2], None));
    let view = world.view(0, 1);
    assert_eq!((seqs(&view), view.next_after), (vec![1], Some(1)));
}
