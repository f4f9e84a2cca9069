//! The bugs that the simulator found in the deciding part of holds. Each has a scene.

use std::time::Duration;

use super::scene::{Scene, quiet, withdraw};
use whimbrel_holds::HoldsSettings;
use whimbrel_model::ports::{HoldQuery, HoldReply, HoldRequest, HoldsError, NewDueTime};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, Timestamp, TopicNumber};
use whimbrel_sim::holds::world::CommitFault;

const MINUTE: i64 = 60_000;

#[test]
fn an_ended_hold_stays_ended_when_its_checkpoint_ends_during_a_store_request() {
    let mut scene = Scene::new(HoldsSettings { checkpoint_changes: 1, ..quiet() });
    let (hold, other) = (scene.hold("a", 0), scene.hold("b", MINUTE));
    scene.append(&hold);
    // The end of the hold is folded and in transit to the store.
    scene.run_but(0, &["apply"]);
    assert_eq!(scene.world.truth.fired, 1);
    scene.run_one_save(0);
    scene.run_but(0, &["apply"]);
    // A repeat, beside a hold that requires a store request.
    scene.append(&hold);
    scene.append(&other);
    scene.run_but(0, &["apply", "get"]);
    assert!(scene.waits_for(0, "get"), "memory has the first and not the second");
    scene.run_one_save(0);
    scene.run(0);
    scene.wait(0, 10);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn a_hold_does_not_fire_early_after_an_order_to_fire_met_a_closed_topic() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", 5_000);
    scene.world.closed.insert(TopicNumber(1));
    let question = scene.ask(0, HoldRequest::Fire { id: hold.id.clone() });
    scene.run(0);
    assert!(matches!(scene.answer_to(question), Some(Err(HoldsError::Unavailable(_)))), "nothing was done");
    scene.world.closed.clear();
    scene.wait(0, 1_000);
    assert_eq!(scene.world.truth.fired, 0);
    scene.wait(0, 4_000);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn a_part_of_the_log_that_was_not_walked_is_not_trimmed() {
    let mut scene = Scene::new(HoldsSettings { trim_interval: Duration::from_millis(50), ..quiet() });
    scene.accepted_minted(MINUTE);
    scene.checkpoint();
    scene.pass_and_tick(0, 200);
    scene.run_but(0, &["walk"]);
    scene.answer_with_nothing(0, "walk");
    scene.run(0);
    scene.store_falls_back_to(0);
    scene.take(1);
    scene.wait(1, MINUTE);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn a_hold_that_the_window_drops_meanwhile_is_carried() {
    let settings = HoldsSettings { trim_interval: Duration::from_millis(50), window_bytes: 1_000, ..quiet() };
    let mut scene = Scene::new(settings);
    let late = scene.minted(9_000);
    scene.accepted(&late);
    scene.checkpoint();
    scene.pass_and_tick(0, 200);
    // Holds in the window need no store request. A commit in progress delays the carried records.
    scene.run_but(0, &["walk"]);
    scene.append(&scene.hold("due", 0));
    scene.run_but(0, &["walk", "commit"]);
    assert!(scene.waits_for(0, "commit"));
    scene.run_but(0, &["commit"]);
    for each in 0..6 {
        scene.append(&scene.hold(&format!("near{each}"), 8_000));
    }
    scene.run(0);
    assert!(scene.world.log.bounds().first > 0, "the log was trimmed");
    scene.store_falls_back_to(0);
    scene.take(1);
    scene.wait(1, 5_000);
    scene.wait(1, 5_000);
    assert!(scene.world.truth.pending().next().is_none());
}

#[test]
fn a_withdrawal_in_doubt_is_not_answered_like_an_order_to_fire() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", 5);
    scene.checkpoint();
    scene.pass(5);
    let question = scene.ask(0, withdraw(&hold));
    scene.run_but(0, &["commit"]);
    // The withdrawal has an unknown outcome. It is void, and the hold fires in the same millisecond.
    scene.answer(0, "commit", CommitFault::UnknownAtLarge);
    scene.deliver(0, "commit");
    scene.run_but(0, &["end", "get"]);
    assert_eq!(scene.world.truth.fired, 1);
    scene.run(0);
    let reply = scene.answer_to(question);
    assert!(matches!(reply, Some(Ok(HoldReply::Ended(HoldEnd { how: HoldEndKind::Fired { .. }, .. })))), "{reply:?}");
}

#[test]
fn a_list_names_a_hold_once_that_moved_while_it_was_read() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", 6_000);
    scene.checkpoint();
    let query = HoldQuery { topic: None, from: None, to: None, after: None, limit: 100 };
    let list = scene.ask(0, HoldRequest::List(query));
    scene.run_but(0, &["list"]);
    scene.answer(0, "list", CommitFault::None);
    scene.deliver(0, "list");
    let due = Timestamp::from_millis(hold.due.as_millis() + 1_000);
    let moved = scene
        .ask(0, HoldRequest::Extend { id: hold.id.clone(), to: NewDueTime::Until(due), if_version: None, key: None });
    scene.run_but(0, &["list"]);
    assert!(matches!(scene.answer_to(moved), Some(Ok(HoldReply::Rescheduled { .. }))));
    scene.run(0);
    let Some(Ok(HoldReply::Listed(views))) = scene.answer_to(list) else { panic!("no list") };
    assert_eq!(views.iter().map(|view| view.due).collect::<Vec<_>>(), [due]);
}

#[test]
fn a_window_too_small_for_the_near_holds_does_not_loop() {
    let mut scene = Scene::new(HoldsSettings { window_bytes: 1_000, ..quiet() });
    for each in 0..6 {
        scene.append(&scene.hold(&format!("near{each}"), 8_000));
    }
    // The shard settles, before and after the holds are in the store.
    scene.run(0);
    scene.checkpoint();
    scene.wait(0, 5_000);
    assert_eq!(scene.world.truth.fired, 0);
    scene.wait(0, 3_000);
    assert_eq!(scene.world.truth.fired, 6);
}

#[test]
fn holds_of_a_closed_topic_do_not_block_others() {
    const MANY: u64 = 40;
    let settings = HoldsSettings { window_bytes: 2_000, checkpoint_interval: Duration::from_millis(100), ..quiet() };
    let mut scene = Scene::new(settings);
    scene.world.closed.insert(TopicNumber(1));
    for each in 0..MANY {
        scene.append(&scene.hold(&format!("closed{each}"), 1_000));
    }
    let others = [2_000, 20_000, 40_000].map(|due_in_ms| Hold {
        topic: TopicNumber(2),
        topic_name: "payments".into(),
        ..scene.hold(&format!("other{due_in_ms}"), due_in_ms)
    });
    others.iter().for_each(|hold| scene.append(hold));
    scene.run(0);
    for fired in 0..=others.len() {
        assert_eq!(scene.world.truth.fired, fired as u64, "at {}", scene.now());
        let until = others.get(fired).map_or(scene.now(), |hold| hold.due.as_millis());
        while scene.now() < until {
            scene.wait(0, 250);
        }
    }
    // One hold is withdrawn and one is moved while the topic is closed. The others fire when it opens.
    let (withdrawn, moved) = (scene.hold("closed7", 0), scene.hold("closed30", 0));
    assert_eq!(scene.reply(withdraw(&withdrawn)), HoldReply::Withdrawn);
    let due = Timestamp::from_millis(scene.now() + MINUTE);
    let extend = HoldRequest::Extend { id: moved.id, to: NewDueTime::Until(due), if_version: None, key: None };
    assert!(matches!(scene.reply(extend), HoldReply::Rescheduled { .. }));
    scene.world.closed.clear();
    (0..40).for_each(|_| scene.wait(0, 250));
    assert_eq!(scene.world.truth.fired, others.len() as u64 + MANY - 2);
    scene.wait(0, MINUTE);
    assert_eq!(scene.world.truth.fired, others.len() as u64 + MANY - 1);
}

#[test]
fn a_hold_set_aside_fires_after_a_command_on_it_failed_while_its_page_was_read() {
    const MANY: u64 = 12;
    for commanded in 0..MANY {
        let settings =
            HoldsSettings { window_bytes: 2_000, checkpoint_interval: Duration::from_millis(100), ..quiet() };
        let mut scene = Scene::new(settings);
        scene.world.closed.insert(TopicNumber(1));
        for each in 0..MANY {
            scene.append(&scene.hold(&format!("closed{each}"), 1_000 + each as i64));
        }
        (0..20).for_each(|_| scene.wait(0, 250));
        // The owner requests a page of its set-aside holds from the store, and then a commit decides about one of them.
        scene.pass_and_tick(0, 250);
        scene.run_but(0, &["due"]);
        assert!(scene.waits_for(0, "due"));
        scene.ask(0, HoldRequest::Fire { id: scene.hold(&format!("closed{commanded}"), 0).id });
        scene.run_but(0, &["due", "commit"]);
        assert!(scene.waits_for(0, "due") && scene.waits_for(0, "commit"));
        scene.answer(0, "due", CommitFault::None);
        scene.deliver(0, "due");
        // The topic is closed when the commit is written, and open afterwards.
        scene.answer(0, "commit", CommitFault::None);
        scene.world.closed.clear();
        (0..40).for_each(|_| scene.wait(0, 250));
        assert_eq!(scene.world.truth.fired, MANY, "after a command on the hold {commanded}");
    }
}
