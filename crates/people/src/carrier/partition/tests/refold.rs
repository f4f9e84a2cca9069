//! What an owner makes of records that an earlier one may have handled: nobody gets or is woken for them twice.

use whimbrel_model::push::{Notify, PushMessage};
use whimbrel_model::{Record, StoredRecord, Timestamp};

use super::super::{Effect, Input, Partition};
use super::world::Store;
use super::{EPOCH, GATEWAY, World, message};

impl World {
    /// Another owner takes over, and has not read anything yet; what it wants to do is given back.
    fn begin_to_take_over(&mut self) -> Vec<Effect> {
        let (settings, rules) = (self.settings.clone(), self.rules.clone());
        self.core = Partition::new(settings, rules, 2, EPOCH.into(), Timestamp::from_millis(self.now));
        self.reading = None;
        let (applied, end) = (self.store.applied, self.log.len() as u64);
        self.only(Input::Started { applied, first: 0, end })
    }
}

#[test]
fn what_is_not_stored_goes_only_to_who_was_there_when_it_is_folded_again() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.wait(10);
    world.push_message(message(&["u"]), "x");
    assert_eq!(world.told(1)[1..], ["x ephemeral"]);
    world.wait(10);
    let begins = world.begin_to_take_over();
    // One came since, one came back, and one was there all the time: its gateway knows what it had.
    world.arrive(2, "u", "ios", None);
    let (later, all_the_time) = (world.announce_since(3, 20), world.announce_since(1, 0));
    world.step(later);
    world.perform_all(begins);
    assert_eq!((world.told(2).len(), world.told(3).len()), (1, 0), "nothing but being let in");
    let begins = world.begin_to_take_over();
    world.step(all_the_time);
    world.perform_all(begins);
    assert_eq!(world.told(1), ["x ephemeral"]);
    world.push_message(message(&["u"]), "y");
    assert_eq!(world.told(1), ["y ephemeral"]);
}

#[test]
fn nobody_is_woken_again_because_a_store_is_built_anew() {
    let mut world = World::new();
    world.wait(10_000);
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    world.push_message(PushMessage { store: true, notify: notify.clone(), ..message(&["u"]) }, "old");
    world.wait(100_000);
    world.push_message(PushMessage { store: true, notify, ..message(&["u"]) }, "young");
    assert_eq!(std::mem::take(&mut world.letters).len(), 2);
    world.store = Store::default();
    world.take_over();
    // Of the young one nobody can tell whether somebody was woken for it.
    assert_eq!(world.letters.len(), 1);
    assert_eq!(world.core.counts.stored, 2, "both are stored all the same");
}

#[test]
fn a_name_is_its_publishers_and_its_messages_own() {
    use whimbrel_model::record::{HEADER_FINGERPRINT, HEADER_IDEMPOTENCY_KEY};
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    let brought = PushMessage { id: "1001".into(), brought: true, store: true, ..message(&["u"]) };
    for (owner, fingerprint, body) in
        [("orders", "a", "a"), ("billing", "a", "b"), ("orders", "c", "c"), ("orders", "a", "a"), ("billing", "a", "b")]
    {
        let task = whimbrel_model::push::PushTask::Message(brought.clone());
        let mut headers = task.headers();
        headers.push(HEADER_IDEMPOTENCY_KEY, owner.as_bytes());
        headers.push(HEADER_FINGERPRINT, fingerprint.as_bytes());
        let timestamp = Timestamp::from_millis(world.now);
        let record = Record { key: None, value: body.into(), headers: headers.take(), timestamp };
        world.log.push(StoredRecord { offset: world.log.len() as u64, record });
        if let Some(from) = world.reading.take() {
            world.perform(Effect::Read { from });
        }
    }
    assert_eq!(world.told(1)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2"]);
    assert_eq!(world.core.counts.repeats, 2);
}

#[test]
fn a_gateway_that_joins_again_is_heard_before_a_picture_shows_that_it_left() {
    let mut world = World::with(whimbrel_model::people::PlatformSettings {
        sessions: whimbrel_model::SessionsRule::Reject,
        ..Default::default()
    });
    world.step(Input::Living(vec![GATEWAY].into()));
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1), ["admitted anew at 0 head 0"]);
    let Input::From { messages, .. } = world.announce_since(1, 0) else { unreachable!("an announcement is told") };
    let again = whimbrel_model::people::GatewayId { incarnation: GATEWAY.incarnation + 1, ..GATEWAY };
    world.step(Input::From { gateway: again, messages });
    assert!(world.told(1).is_empty(), "it is the same session, and stays");
    assert_eq!(world.core.sessions(), 1);
}
