//! A new owner folds records that an earlier one may have handled: without repeated deliveries or notices.

use whimbrel_model::SessionsRule;
use whimbrel_model::push::PushMessage;

use super::world::Store;
use super::{GATEWAY, World, message, with_notice};
use crate::carrier::partition::CarrierInput;

#[test]
fn a_refolded_ephemeral_message_goes_only_to_sessions_older_than_it() {
    let mut world = World::connected();
    world.wait(10);
    world.push_message(message(&["u"]), "x");
    assert_eq!(world.told(1)[1..], ["x ephemeral"]);
    world.wait(10);
    let begins = world.begin_to_take_over();
    // Session 2 is new, session 3 arrived after the message, session 1 was connected throughout: its gateway drops duplicates.
    world.arrive(2, "u", "ios", None);
    let (later, all_the_time) = (world.announcement_since(3, 20), world.announcement_since(1, 0));
    world.step(later);
    world.perform_all(begins);
    assert_eq!((world.told(2).len(), world.told(3).len()), (1, 0), "nothing but the admission");
    let begins = world.begin_to_take_over();
    world.step(all_the_time);
    world.perform_all(begins);
    assert_eq!(world.told(1), ["x ephemeral"]);
    world.push_message(message(&["u"]), "y");
    assert_eq!(world.told(1), ["y ephemeral"]);
}

#[test]
fn a_rebuilt_store_does_not_repeat_old_notices() {
    let mut world = World::new();
    world.wait(10_000);
    world.push_message(with_notice(true, &["u"]), "old");
    world.wait(100_000);
    world.push_message(with_notice(true, &["u"]), "young");
    assert_eq!(std::mem::take(&mut world.outbound).len(), 2);
    world.store = Store::default();
    world.take_over();
    // For the young message it is unknown whether the earlier owner wrote the notice.
    assert_eq!(world.outbound.len(), 1);
    assert_eq!(world.core.counts.stored, 2, "both are stored");
}

#[test]
fn a_repeat_has_the_same_id_publisher_and_content() {
    use whimbrel_model::record::{HEADER_FINGERPRINT, HEADER_IDEMPOTENCY_KEY};
    let mut world = World::connected();
    let brought = PushMessage { id: "1001".into(), brought: true, store: true, ..message(&["u"]) };
    for (owner, fingerprint, body) in
        [("orders", "a", "a"), ("billing", "a", "b"), ("orders", "c", "c"), ("orders", "a", "a"), ("billing", "a", "b")]
    {
        let task = whimbrel_model::push::PushTask::Message(brought.clone());
        let mut headers = task.headers();
        headers.push(HEADER_IDEMPOTENCY_KEY, owner.as_bytes());
        headers.push(HEADER_FINGERPRINT, fingerprint.as_bytes());
        world.append_record(headers.take(), body);
    }
    assert_eq!(world.told(1)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2"]);
    assert_eq!(world.core.counts.repeats, 2);
}

#[test]
fn a_restarted_gateway_may_send_before_the_list_shows_its_new_incarnation() {
    let mut world = World::with_sessions(SessionsRule::Reject);
    world.step(CarrierInput::LiveGateways(vec![GATEWAY].into()));
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1), ["admitted anew at 0 head 0"]);
    let CarrierInput::From { messages, .. } = world.announcement_since(1, 0) else {
        unreachable!("an announcement is a message")
    };
    let again = whimbrel_model::people::GatewayId { incarnation: GATEWAY.incarnation + 1, ..GATEWAY };
    world.step(CarrierInput::From { gateway: again, messages });
    assert!(world.told(1).is_empty(), "it is the same session and stays");
    assert_eq!(world.core.sessions(), 1);
}
