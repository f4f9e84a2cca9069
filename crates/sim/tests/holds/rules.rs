//! One scene for each rule of the protocol of holds. Each fails if its rule is removed from the code: docs/internals/holds-rules.md names
//! the place of the rule and the mutation. Every step is also compared with the true history: no hold fires twice, early, or after a
//! withdrawal, and store and log always give exactly the pending holds.

use std::time::Duration;

use super::scene::{Scene, accept, quiet, withdraw};
use whimbrel_holds::HoldsSettings;
use whimbrel_model::ports::{HoldReply, HoldRequest, HoldsError, NewDueTime, StoredHold};
use whimbrel_model::{HoldEnd, HoldEndKind, HoldId, Timestamp};
use whimbrel_sim::holds::world::CommitFault;

const MINUTE: i64 = 60_000;

fn trims_often() -> HoldsSettings {
    HoldsSettings { trim_interval: Duration::from_millis(50), ..quiet() }
}

fn saves_often() -> HoldsSettings {
    HoldsSettings { checkpoint_interval: Duration::from_millis(10), ..quiet() }
}

fn until(hold: &whimbrel_model::Hold, due: Timestamp, if_version: Option<u64>) -> HoldRequest {
    HoldRequest::Extend { id: hold.id.clone(), to: NewDueTime::Until(due), if_version, key: None }
}

#[test]
fn answer_early_an_answer_waits_for_the_outcome_of_its_commit() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", MINUTE);
    let question = scene.ask(0, withdraw(&hold));
    scene.run_but(0, &["commit"]);
    assert!(scene.waits_for(0, "commit"));
    assert_eq!(scene.answer_to(question), None);
    scene.answer(0, "commit", CommitFault::None);
    assert_eq!(scene.answer_to(question), None, "written, but not confirmed to the owner");
    scene.run(0);
    assert_eq!(scene.answer_to(question), Some(Ok(HoldReply::Withdrawn)));
}

#[test]
fn no_fold_a_successor_folds_to_the_end_before_it_decides() {
    let mut scene = Scene::new(quiet());
    scene.accepted(&scene.hold("a", 0));
    assert_eq!(scene.world.truth.fired, 1);
    scene.world.crash(0);
    // Record by record: a successor that decides too early would see the hold and not its fire.
    scene.world.page_records = 1;
    scene.take(1);
    scene.wait(1, 10);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn unknown_is_failure_a_commit_that_may_have_landed_is_not_repeated() {
    let mut scene = Scene::new(quiet());
    scene.append(&scene.hold("a", 0));
    scene.run_but(0, &["commit"]);
    scene.answer(0, "commit", CommitFault::UnknownLanded);
    scene.run(0);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn unknown_is_failure_a_commit_that_may_still_land_is_voided_first() {
    let mut scene = Scene::new(quiet());
    scene.append(&scene.hold("a", 0));
    scene.run_but(0, &["commit"]);
    scene.answer(0, "commit", CommitFault::UnknownAtLarge);
    scene.run(0);
    assert_eq!(scene.world.truth.fired, 1, "decided again");
    scene.world.stray_lands(0, true).expect("the stray commit is void");
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn trim_without_carry_pending_holds_are_carried_before_the_log_is_trimmed() {
    let mut scene = Scene::new(trims_often());
    scene.accepted_minted(MINUTE);
    scene.checkpoint();
    scene.wait(0, 200);
    assert!(scene.world.log.bounds().first > 0, "the log was trimmed");
    // The store is lost; only the log is left.
    scene.store_falls_back_to(0);
    scene.take(1);
    scene.wait(1, MINUTE);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn ignore_expected_a_checkpoint_that_finds_the_store_at_another_offset_folds_again() {
    let mut scene = Scene::new(HoldsSettings { checkpoint_changes: 1, ..quiet() });
    scene.accepted(&scene.hold("a", MINUTE));
    assert_eq!(scene.world.store.applied(), 1);
    scene.store_falls_back_to(0);
    scene.append(&scene.minted(MINUTE));
    scene.run_but(0, &["apply"]);
    scene.world.answer_saving(0, false).expect("a rejected write");
    scene.world.deliver_saving(0).expect("the rejection arrives");
    assert!(scene.world.is_starting(0), "the memory no longer counts");
    scene.run(0);
    assert_eq!((scene.world.store.applied(), scene.world.store.known().len()), (2, 2));
}

/// A withdrawn hold with a distant due time: completely in the store, and not in memory.
fn withdrawn_and_saved(scene: &mut Scene) -> whimbrel_model::Hold {
    let hold = scene.accepted_minted(MINUTE);
    scene.checkpoint();
    assert_eq!(scene.reply(withdraw(&hold)), HoldReply::Withdrawn);
    scene.checkpoint();
    assert_eq!(scene.world.store.applied(), 2);
    hold
}

#[test]
fn unchecked_due_a_store_that_fell_back_does_not_fire_a_withdrawn_hold() {
    let mut scene = Scene::new(quiet());
    withdrawn_and_saved(&mut scene);
    scene.store_falls_back_to(1);
    scene.wait(0, MINUTE);
    scene.wait(0, 1_000);
    assert_eq!(scene.world.truth.fired, 0);
}

#[test]
fn unchecked_get_a_command_is_not_decided_by_a_store_that_fell_back() {
    let mut scene = Scene::new(quiet());
    let hold = withdrawn_and_saved(&mut scene);
    scene.store_falls_back_to(1);
    let reply = scene.reply(until(&hold, hold.due, None));
    assert!(matches!(reply, HoldReply::Ended(HoldEnd { how: HoldEndKind::Withdrawn, .. })), "{reply:?}");
}

#[test]
fn unchecked_get_a_record_is_not_folded_by_a_store_that_fell_back() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", 0);
    scene.checkpoint();
    assert_eq!((scene.world.truth.fired, scene.world.store.applied()), (1, 2));
    scene.store_falls_back_to(0);
    scene.accepted(&hold);
    scene.wait(0, 10);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn keep_stale_store_a_store_behind_the_kept_log_is_emptied() {
    let mut scene = Scene::new(trims_often());
    withdrawn_and_saved(&mut scene);
    scene.wait(0, 200);
    scene.wait(0, 200);
    assert!(scene.world.log.bounds().first > 1, "the withdrawal was trimmed");
    scene.store_falls_back_to(1);
    scene.take(1);
    scene.wait(1, MINUTE);
    assert_eq!(scene.world.truth.fired, 0);
}

#[test]
fn rebuild_to_command_an_emptied_store_is_filled_to_the_end_before_anything_is_decided() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", MINUTE);
    assert_eq!(scene.reply(withdraw(&hold)), HoldReply::Withdrawn);
    scene.world.store.is_damaged = true;
    scene.world.page_records = 1;
    // A look-up finds the damaged store. While the store is rebuilt record by record, the due time passes.
    let question = scene.ask(0, HoldRequest::Look { id: HoldId::new("no-such-hold") });
    scene.pass(MINUTE);
    scene.run(0);
    assert!(matches!(scene.answer_to(question), Some(Err(HoldsError::Unavailable(_)))));
    let reply = scene.reply(HoldRequest::Look { id: hold.id.clone() });
    assert!(matches!(reply, HoldReply::Ended(HoldEnd { how: HoldEndKind::Withdrawn, .. })), "{reply:?}");
    assert_eq!(scene.world.truth.fired, 0);
}

#[test]
fn checkpoint_pending_only_the_outcome_of_a_hold_is_in_the_store() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", 0);
    scene.checkpoint();
    assert!(matches!(scene.world.store.known().get(&hold.id), Some(StoredHold::Ended(_))));
    scene.accepted(&hold);
    scene.wait(0, 10);
    assert_eq!(scene.world.truth.fired, 1, "a repeated `held` stays ignored");
}

#[test]
fn carry_pending_only_the_outcome_of_a_hold_that_may_be_repeated_is_carried() {
    let mut scene = Scene::new(trims_often());
    let hold = scene.accepted_hold("a", 0);
    scene.checkpoint();
    scene.wait(0, 200);
    assert!(scene.world.log.bounds().first > 1, "the record that it fired was trimmed");
    scene.store_falls_back_to(0);
    scene.append(&hold);
    scene.take(1);
    scene.wait(1, 10);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn carried_yields_a_carried_record_replaces_a_repeated_held() {
    let mut scene = Scene::new(trims_often());
    let hold = scene.accepted_hold("a", MINUTE);
    let later = Timestamp::from_millis(hold.due.as_millis() + MINUTE);
    assert!(matches!(scene.reply(until(&hold, later, None)), HoldReply::Rescheduled { .. }));
    scene.checkpoint();
    scene.pass(200);
    // The repeat lies after the cut, and before the carried record.
    scene.append(&hold);
    scene.tick(0);
    scene.run(0);
    assert_eq!((scene.world.log.bounds().first, scene.world.truth.carried), (2, 1));
    scene.store_falls_back_to(0);
    scene.take(1);
    scene.wait(1, MINUTE);
    assert_eq!(scene.world.truth.fired, 0, "not with the old due time");
    scene.wait(1, MINUTE);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn carry_by_append_a_zombie_carries_nothing_and_trims_nothing() {
    let mut scene = Scene::new(trims_often());
    let hold = scene.accepted_hold("a", MINUTE);
    scene.checkpoint();
    scene.pass_and_tick(0, 200);
    scene.run_but(0, &["commit"]);
    assert!(scene.waits_for(0, "commit"), "it carries");
    scene.take(1);
    let question = scene.ask(1, withdraw(&hold));
    scene.run_but(1, &["trim"]);
    assert_eq!(scene.answer_to(question), Some(Ok(HoldReply::Withdrawn)));
    let carried_by_owner = scene.world.truth.carried;
    scene.run(0);
    assert_eq!(scene.world.truth.carried, carried_by_owner);
    assert!(!scene.waits_for(0, "trim") && scene.world.nodes[0].owner.is_none(), "it is fenced, and stops");
}

#[test]
fn checkpoint_ahead_an_own_decision_is_saved_only_when_the_checkpoint_covers_it() {
    let mut scene = Scene::new(saves_often());
    let hold = scene.accepted_hold("a", 5_000);
    scene.wait(0, 20);
    scene.append(&scene.minted(MINUTE));
    scene.world.log.stall();
    let question = scene.ask(0, withdraw(&hold));
    scene.run_but(0, &["read"]);
    assert_eq!(scene.answer_to(question), Some(Ok(HoldReply::Withdrawn)));
    scene.wait(0, 20);
    assert_eq!(scene.world.store.applied(), 2, "up to the visible end");
    assert!(
        matches!(scene.world.store.known().get(&hold.id), Some(StoredHold::Pending(_))),
        "as it was at that offset"
    );
    scene.world.log.show_all();
    scene.wait(0, 20);
    assert!(matches!(scene.world.store.known().get(&hold.id), Some(StoredHold::Ended(_))));
}

#[test]
fn applied_is_own_commit_unfolded_records_do_not_count_as_applied() {
    let mut scene = Scene::new(saves_often());
    let hold = scene.accepted_hold("a", 5_000);
    scene.wait(0, 20);
    scene.append(&scene.minted(MINUTE));
    let question = scene.ask(0, withdraw(&hold));
    scene.run_but(0, &["read"]);
    assert_eq!(scene.answer_to(question), Some(Ok(HoldReply::Withdrawn)));
    scene.pass_and_tick(0, 20);
    scene.run_but(0, &["read"]);
    assert_eq!(scene.world.store.applied(), 1, "the other hold lies before the owner's commit");
    scene.wait(0, 20);
    scene.wait(0, 20);
    assert_eq!(scene.world.store.applied(), 3);
}

#[test]
fn fenced_no_fold_after_a_newer_fence_everything_is_folded_again() {
    let mut scene = Scene::new(quiet());
    scene.append(&scene.hold("a", 0));
    scene.run_but(0, &["commit"]);
    scene.take(1);
    assert_eq!(scene.world.truth.fired, 1);
    scene.answer(0, "commit", CommitFault::None);
    scene.deliver(0, "commit");
    assert!(scene.world.is_starting(0) && scene.world.calls(0).is_empty(), "nothing is decided before that");
    scene.run(0);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn end_is_visible_durable_records_that_are_not_visible_yet_are_awaited() {
    let mut scene = Scene::new(quiet());
    scene.world.log.stall();
    let hold = scene.hold("a", MINUTE);
    scene.append(&hold);
    let question = scene.ask(0, withdraw(&hold));
    scene.run(0);
    assert_eq!(scene.answer_to(question), None, "the hold is accepted, although it is not visible yet");
    scene.world.log.show_all();
    scene.run(0);
    assert_eq!(scene.answer_to(question), Some(Ok(HoldReply::Withdrawn)));
}

#[test]
fn end_is_visible_a_successor_waits_for_records_that_are_not_visible_yet() {
    let mut scene = Scene::new(quiet());
    scene.world.log.stall();
    scene.append(&scene.hold("a", 0));
    scene.take(1);
    let is_ready = |scene: &Scene| scene.world.nodes[1].owner.as_ref().is_some_and(|owner| owner.shard.is_ready());
    assert!(!is_ready(&scene));
    scene.world.log.show_all();
    scene.run(1);
    assert!(is_ready(&scene));
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn refuse_unfolded_a_version_is_rejected_only_after_folding_to_the_end() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", MINUTE);
    scene.take(1);
    let question = scene.ask(1, until(&hold, hold.due, None));
    scene.run(1);
    let Some(Ok(HoldReply::Rescheduled { version, .. })) = scene.answer_to(question) else { panic!("it is moved") };
    // Node 0 has not noticed that it was replaced. Node 1 issued this version.
    let question = scene.ask(0, until(&hold, hold.due, Some(version)));
    scene.run(0);
    assert_eq!(scene.answer_to(question), Some(Err(HoldsError::NoOwner(0))));
}

#[test]
fn a_hold_with_a_publishers_id_is_looked_up_in_the_store_first() {
    let mut scene = Scene::new(quiet());
    let hold = scene.hold("a", 0);
    assert!(matches!(scene.reply(accept(&hold)), HoldReply::Held { .. }));
    scene.wait(0, 10);
    scene.checkpoint();
    assert!(matches!(scene.reply(accept(&hold)), HoldReply::Held { .. }));
    assert_eq!(scene.world.truth.fired, 1);
}
