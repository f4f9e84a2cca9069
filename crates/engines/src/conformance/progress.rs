//! The contract of [`Progress`], as properties that every engine must have.
//!
//! Each property has a store or subscription numbers of its own.

use bytes::Bytes;
use futures_util::future::join_all;
use whimbrel_model::ports::{Progress, ProgressError, ProgressKey, ProgressRow};
use whimbrel_model::{PartitionId, SubscriptionNumber, TopicNumber};

use super::{Opened, Opens};

#[doc(hidden)]
#[macro_export]
macro_rules! progress_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                a_subscription_without_saves_has_no_rows,
                saved_rows_are_returned_by_the_next_open,
                saved_rows_survive_a_restart,
                the_last_save_of_a_row_replaces_it_whole,
                rows_that_are_not_saved_again_stay,
                lines_and_partitions_have_rows_of_their_own,
                an_older_epoch_cannot_open,
                the_same_epoch_opens_again,
                a_newer_epoch_rejects_saves_of_the_earlier_owner,
                an_epoch_is_remembered_before_anything_is_saved,
                an_epoch_that_did_not_open_cannot_save,
                epochs_of_many_digits_compare_as_numbers,
                a_row_of_an_older_run_is_refused,
                the_same_run_and_a_newer_one_are_taken,
                runs_of_many_digits_compare_as_numbers,
                rows_are_saved_all_or_none,
                saving_nothing_is_still_refused_under_an_older_epoch,
                a_lost_store_accepts_a_save,
                a_lost_store_has_the_epoch_after_a_save,
                an_ended_line_is_removed_and_others_stay,
                an_ended_line_may_begin_again_with_an_older_run,
                an_older_epoch_cannot_end_a_line,
                a_line_that_has_no_rows_can_be_ended,
                a_forgotten_subscription_loses_its_rows_and_its_epoch,
                a_missing_subscription_can_be_forgotten,
                rows_of_another_subscription_are_untouched,
                a_thousand_rows_are_saved_at_once,
                a_row_may_be_a_mebibyte,
                a_state_may_be_empty_and_have_any_bytes,
                saves_of_many_subscriptions_at_once_are_all_kept,
            ]
        }
    };
}

crate::progress_properties! { conformance_exports }

/// An engine for the suite.
pub type ProgressFactory = dyn Opens<dyn Progress>;
pub type OpenProgress = Opened<dyn Progress>;

const SUB: SubscriptionNumber = SubscriptionNumber(7);

mod properties {
    use super::*;

    pub async fn a_subscription_without_saves_has_no_rows(factory: &ProgressFactory) {
        let open = factory.open().await;
        assert_eq!(opened(&open, SUB, 1).await, []);
    }

    pub async fn saved_rows_are_returned_by_the_next_open(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        let rows = vec![row(0, 0, 1, "a"), row(0, 1, 1, "b")];
        save(&open, SUB, 1, rows.clone()).await;
        assert_eq!(opened(&open, SUB, 2).await, rows);
    }

    pub async fn saved_rows_survive_a_restart(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 3).await;
        save(&open, SUB, 3, vec![row(0, 0, 5, "a")]).await;
        let open = factory.reopen(open).await;
        assert_eq!(opened(&open, SUB, 3).await, [row(0, 0, 5, "a")]);
        assert_eq!(open.open(SUB, 2).await, Err(fenced(SUB, 3)));
    }

    pub async fn the_last_save_of_a_row_replaces_it_whole(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 0, 1, "a long state")]).await;
        save(&open, SUB, 1, vec![row(0, 0, 1, "short")]).await;
        assert_eq!(opened(&open, SUB, 1).await, [row(0, 0, 1, "short")]);
    }

    pub async fn rows_that_are_not_saved_again_stay(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 0, 1, "a"), row(0, 1, 1, "b")]).await;
        save(&open, SUB, 1, vec![row(0, 1, 1, "c")]).await;
        assert_eq!(opened(&open, SUB, 1).await, [row(0, 0, 1, "a"), row(0, 1, 1, "c")]);
    }

    pub async fn lines_and_partitions_have_rows_of_their_own(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        // Numbers whose bytes would collide if places had no fixed width, or if they sorted as text.
        let places = [(0, 1, 0), (0, 1, 256), (0, 256, 1), (1, 0, 0), (256, 0, 0), (u32::MAX, u32::MAX, u32::MAX)];
        let rows = places.map(|(line, topic, index)| ProgressRow {
            place: ProgressKey { line, partition: PartitionId::new(TopicNumber(topic), index) },
            run: 1,
            state: Bytes::from(format!("{line} {topic} {index}")),
        });
        save(&open, SUB, 1, rows.to_vec()).await;
        assert_eq!(opened(&open, SUB, 1).await, rows);
    }

    pub async fn an_older_epoch_cannot_open(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 5).await;
        assert_eq!(open.open(SUB, 4).await, Err(fenced(SUB, 5)));
    }

    pub async fn the_same_epoch_opens_again(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 5).await;
        save(&open, SUB, 5, vec![row(0, 0, 1, "a")]).await;
        assert_eq!(opened(&open, SUB, 5).await, [row(0, 0, 1, "a")]);
        save(&open, SUB, 5, vec![row(0, 0, 1, "b")]).await;
    }

    pub async fn a_newer_epoch_rejects_saves_of_the_earlier_owner(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 0, 1, "a")]).await;
        opened(&open, SUB, 2).await;
        assert_eq!(open.save(SUB, 1, vec![row(0, 0, 1, "zombie")]).await, Err(fenced(SUB, 2)));
        assert_eq!(opened(&open, SUB, 2).await, [row(0, 0, 1, "a")]);
    }

    pub async fn an_epoch_is_remembered_before_anything_is_saved(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 9).await;
        let open = factory.reopen(open).await;
        assert_eq!(open.open(SUB, 8).await, Err(fenced(SUB, 9)));
    }

    pub async fn an_epoch_that_did_not_open_cannot_save(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 5).await;
        assert_eq!(open.save(SUB, 6, vec![row(0, 0, 1, "a")]).await, Err(fenced(SUB, 5)));
        assert_eq!(opened(&open, SUB, 5).await, []);
    }

    pub async fn epochs_of_many_digits_compare_as_numbers(factory: &ProgressFactory) {
        let open = factory.open().await;
        for (older, newer) in
            [(9, 10), ((1 << 53) - 1, 1 << 53), ((1 << 53) + 1, (1 << 53) + 2), (u64::MAX - 1, u64::MAX)]
        {
            opened(&open, SUB, newer).await;
            assert_eq!(open.open(SUB, older).await, Err(fenced(SUB, newer)));
            assert_eq!(open.save(SUB, older, vec![]).await, Err(fenced(SUB, newer)));
        }
    }

    pub async fn a_row_of_an_older_run_is_refused(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 0, 2, "after the seek")]).await;
        let refused = open.save(SUB, 1, vec![row(0, 0, 1, "before")]).await;
        assert_eq!(refused, Err(ProgressError::NewerRun { place: row(0, 0, 1, "").place, run: 2 }));
        assert_eq!(opened(&open, SUB, 1).await, [row(0, 0, 2, "after the seek")]);
    }

    pub async fn the_same_run_and_a_newer_one_are_taken(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        for (run, state) in [(1, "a"), (1, "b"), (3, "c")] {
            save(&open, SUB, 1, vec![row(0, 0, run, state)]).await;
            assert_eq!(opened(&open, SUB, 1).await, [row(0, 0, run, state)]);
        }
    }

    pub async fn runs_of_many_digits_compare_as_numbers(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        for (older, newer) in [(9, 10), (255, 256), (u32::MAX - 1, u32::MAX)] {
            save(&open, SUB, 1, vec![row(0, 0, newer, "new")]).await;
            let refused = open.save(SUB, 1, vec![row(0, 0, older, "old")]).await;
            assert_eq!(refused, Err(ProgressError::NewerRun { place: row(0, 0, 1, "").place, run: newer }));
        }
    }

    pub async fn rows_are_saved_all_or_none(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 1, 2, "newer")]).await;
        let rows = vec![row(0, 0, 1, "a"), row(0, 1, 1, "older"), row(0, 2, 1, "c")];
        open.save(SUB, 1, rows).await.expect_err("one of them is of an older run");
        assert_eq!(opened(&open, SUB, 1).await, [row(0, 1, 2, "newer")]);
    }

    pub async fn saving_nothing_is_still_refused_under_an_older_epoch(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 2).await;
        assert_eq!(open.save(SUB, 1, vec![]).await, Err(fenced(SUB, 2)));
        assert_eq!(open.save(SUB, 2, vec![]).await, Ok(()));
    }

    pub async fn a_lost_store_accepts_a_save(factory: &ProgressFactory) {
        let open = factory.open().await;
        save(&open, SUB, 4, vec![row(0, 0, 1, "a")]).await;
        assert_eq!(opened(&open, SUB, 4).await, [row(0, 0, 1, "a")]);
    }

    pub async fn a_lost_store_has_the_epoch_after_a_save(factory: &ProgressFactory) {
        let open = factory.open().await;
        save(&open, SUB, 4, vec![row(0, 0, 1, "a")]).await;
        assert_eq!(open.save(SUB, 3, vec![row(0, 0, 1, "zombie")]).await, Err(fenced(SUB, 4)));
        assert_eq!(open.open(SUB, 3).await, Err(fenced(SUB, 4)));
    }

    pub async fn an_ended_line_is_removed_and_others_stay(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        let (cursor, other) = (row(0, 0, 1, "cursor"), row(256, 0, 256, "another replay"));
        let replay = [row(2, 0, 2, "replay"), row(2, 1, 2, "replay")];
        save(&open, SUB, 1, [&replay[..], &[cursor.clone(), other.clone()]].concat()).await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Ok(()));
        assert_eq!(opened(&open, SUB, 1).await, [cursor, other]);
    }

    pub async fn an_ended_line_may_begin_again_with_an_older_run(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(2, 0, 9, "a")]).await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Ok(()));
        save(&open, SUB, 1, vec![row(2, 0, 1, "b")]).await;
        assert_eq!(opened(&open, SUB, 1).await, [row(2, 0, 1, "b")]);
    }

    pub async fn an_older_epoch_cannot_end_a_line(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(2, 0, 2, "replay")]).await;
        opened(&open, SUB, 2).await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Err(fenced(SUB, 2)));
        assert_eq!(opened(&open, SUB, 2).await, [row(2, 0, 2, "replay")]);
    }

    pub async fn a_line_that_has_no_rows_can_be_ended(factory: &ProgressFactory) {
        let open = factory.open().await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Ok(()));
        opened(&open, SUB, 1).await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Ok(()));
    }

    pub async fn a_forgotten_subscription_loses_its_rows_and_its_epoch(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 5).await;
        save(&open, SUB, 5, vec![row(0, 0, 1, "a"), row(2, 0, 2, "b")]).await;
        assert_eq!(open.forget(SUB).await, Ok(()));
        let open = factory.reopen(open).await;
        assert_eq!(opened(&open, SUB, 1).await, []);
    }

    pub async fn a_missing_subscription_can_be_forgotten(factory: &ProgressFactory) {
        let open = factory.open().await;
        assert_eq!(open.forget(SUB).await, Ok(()));
    }

    pub async fn rows_of_another_subscription_are_untouched(factory: &ProgressFactory) {
        let open = factory.open().await;
        // The bytes of the other numbers begin with the first number.
        let others = [0, 8, 7 << 8, 70, u32::MAX].map(SubscriptionNumber);
        for other in others {
            opened(&open, other, 9).await;
            save(&open, other, 9, vec![row(0, 0, 9, "theirs"), row(2, 0, 9, "theirs")]).await;
        }
        opened(&open, SUB, 1).await;
        save(&open, SUB, 1, vec![row(0, 0, 1, "ours"), row(2, 0, 1, "ours")]).await;
        assert_eq!(open.end_line(SUB, 1, 2).await, Ok(()));
        assert_eq!(open.forget(SUB).await, Ok(()));
        for other in others {
            assert_eq!(opened(&open, other, 9).await, [row(0, 0, 9, "theirs"), row(2, 0, 9, "theirs")]);
        }
    }

    pub async fn a_thousand_rows_are_saved_at_once(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        let rows: Vec<_> = (0..1000).map(|index| row(0, index, 1, &format!("state of {index}"))).collect();
        save(&open, SUB, 1, rows.clone()).await;
        assert_eq!(opened(&open, SUB, 1).await, rows);
        let again: Vec<_> = (0..1000).map(|index| row(0, index, 2, "again")).collect();
        save(&open, SUB, 1, again.clone()).await;
        assert_eq!(opened(&open, SUB, 1).await, again);
    }

    pub async fn a_row_may_be_a_mebibyte(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        let state = |seed: u32| -> Bytes { (0..1u32 << 20).map(|at| (at.wrapping_mul(seed) >> 7) as u8).collect() };
        let rows: Vec<_> = (0..4).map(|at| ProgressRow { state: state(31 + at), ..row(0, at, 1, "") }).collect();
        for _ in 0..3 {
            save(&open, SUB, 1, rows.clone()).await;
        }
        let open = factory.reopen(open).await;
        assert!(opened(&open, SUB, 1).await == rows, "large rows come back as they were");
    }

    pub async fn a_state_may_be_empty_and_have_any_bytes(factory: &ProgressFactory) {
        let open = factory.open().await;
        opened(&open, SUB, 1).await;
        let any = ProgressRow { state: (0..=255).collect(), ..row(0, 1, 1, "") };
        let rows = vec![row(0, 0, 1, ""), any];
        save(&open, SUB, 1, rows.clone()).await;
        assert_eq!(opened(&open, SUB, 1).await, rows);
    }

    pub async fn saves_of_many_subscriptions_at_once_are_all_kept(factory: &ProgressFactory) {
        let open = factory.open().await;
        let subscriptions = (1..=64).map(SubscriptionNumber);
        join_all(subscriptions.clone().map(|sub| opened(&open, sub, 1))).await;
        let states = subscriptions.clone().map(|sub| (sub, row(0, 0, 1, &format!("state of {}", sub.0))));
        join_all(states.clone().map(|(sub, row)| save(&open, sub, 1, vec![row]))).await;
        for (sub, row) in states {
            assert_eq!(opened(&open, sub, 1).await, [row]);
        }
    }
}

/// All rows, sorted by place.
async fn opened(open: &OpenProgress, subscription: SubscriptionNumber, epoch: u64) -> Vec<ProgressRow> {
    let mut rows = open.open(subscription, epoch).await.expect("the subscription opens");
    rows.sort_by_key(|row| row.place);
    rows
}

async fn save(open: &OpenProgress, subscription: SubscriptionNumber, epoch: u64, rows: Vec<ProgressRow>) {
    open.save(subscription, epoch, rows).await.expect("the rows are saved");
}

fn row(line: u32, index: u32, run: u32, state: &str) -> ProgressRow {
    let place = ProgressKey { line, partition: PartitionId::new(TopicNumber(3), index) };
    ProgressRow { place, run, state: Bytes::copy_from_slice(state.as_bytes()) }
}

fn fenced(subscription: SubscriptionNumber, epoch: u64) -> ProgressError {
    ProgressError::Fenced { subscription: subscription.0, epoch }
}
