//! The contract of [`Receipts`], as properties that every engine must have.
//!
//! Claims have texts that no other test of the machine uses, so that all properties can share one store. The effect of a crash on receipts
//! depends on the log that they follow, and is tested there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use whimbrel_model::ports::{Claim, ClaimKind, ClaimState, PublishReceipt, Receipts};
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

use super::{Opened, Opens, now, unique_word};

#[doc(hidden)]
#[macro_export]
macro_rules! receipts_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                a_first_claim_is_new,
                a_second_claim_meanwhile_is_under_way,
                a_finished_claim_gives_the_first_answer,
                a_finished_claim_with_another_body_is_different,
                an_abandoned_claim_is_new_again,
                a_claim_that_is_given_back_is_new_again,
                a_lapsed_claim_that_is_given_back_lapses_again_at_once,
                a_lapsed_claim_that_is_abandoned_is_new_again,
                a_claim_is_held_until_it_ends,
                one_of_many_claims_at_once_is_new,
                a_claim_is_the_same_in_another_partition_of_its_topic,
                claims_of_other_topics_are_their_own,
                claims_of_other_owners_are_their_own,
                a_key_and_an_id_of_the_same_text_are_two_claims,
                an_answer_stays_for_the_window,
                an_answer_is_forgotten_after_the_window,
                an_id_is_found_again,
                an_id_published_by_several_is_found_oldest_first,
                a_key_is_not_found_as_an_id,
                an_unfinished_id_is_not_found,
            ]
        }
    };
}

crate::receipts_properties! { conformance_exports }

/// An engine for the suite.
pub trait ReceiptsFactory: Opens<dyn Receipts> {
    /// The retention of answers.
    fn window(&self) -> Duration;

    /// The time for which a claim with an unknown outcome blocks others. The suite waits that long.
    fn lease(&self) -> Duration;
}

pub type OpenReceipts = Opened<dyn Receipts>;

mod properties {
    use super::*;

    pub async fn a_first_claim_is_new(factory: &dyn ReceiptsFactory) {
        let open = factory.open().await;
        assert_eq!(begin(&open, &new_claim(ClaimKind::Key), now()).await, ClaimState::New);
        assert_eq!(begin(&open, &new_claim(ClaimKind::Id), now()).await, ClaimState::New);
    }

    pub async fn a_second_claim_meanwhile_is_under_way(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        begin(&open, &claim, now()).await;
        assert_eq!(begin(&open, &claim, now()).await, ClaimState::UnderWay);
    }

    pub async fn a_finished_claim_gives_the_first_answer(factory: &dyn ReceiptsFactory) {
        for kind in [ClaimKind::Key, ClaimKind::Id] {
            let (open, claim) = (factory.open().await, new_claim(kind));
            let answer = publish(&open, &claim, now()).await;
            for _ in 0..2 {
                assert_eq!(begin(&open, &claim, now()).await, ClaimState::Earlier(answer.clone()));
            }
        }
    }

    pub async fn a_finished_claim_with_another_body_is_different(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        let answer = publish(&open, &claim, now()).await;
        let other_body = Claim { fingerprint: claim.fingerprint + 1, ..claim.clone() };
        assert_eq!(begin(&open, &other_body, now()).await, ClaimState::Different);
        assert_eq!(begin(&open, &claim, now()).await, ClaimState::Earlier(answer), "the first answer stays");
    }

    pub async fn an_abandoned_claim_is_new_again(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        begin(&open, &claim, now()).await;
        open.abandon(&claim).await.expect("the claim can be abandoned");
        let other_body = Claim { fingerprint: claim.fingerprint + 1, ..claim };
        assert_eq!(begin(&open, &other_body, now()).await, ClaimState::New, "also for another body");
    }

    pub async fn a_claim_that_is_given_back_is_new_again(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Id));
        begin(&open, &claim, now()).await;
        open.give_back(&claim).await.expect("it can be given back");
        let other_body = Claim { fingerprint: claim.fingerprint + 1, ..claim };
        assert_eq!(begin(&open, &other_body, now()).await, ClaimState::New, "also for another body");
    }

    pub async fn a_lapsed_claim_that_is_given_back_lapses_again_at_once(factory: &dyn ReceiptsFactory) {
        for kind in [ClaimKind::Key, ClaimKind::Id] {
            let (open, claim) = (factory.open().await, new_claim(kind));
            let places = lapse(factory, &open, &claim).await;
            for _ in 0..3 {
                assert_eq!(begin(&open, &claim, now()).await, ClaimState::Lapsed { places: places.clone() });
                assert_eq!(begin(&open, &claim, now()).await, ClaimState::UnderWay);
                open.give_back(&claim).await.expect("it can be given back");
            }
            let other_body = Claim { fingerprint: claim.fingerprint + 1, ..claim };
            assert_eq!(begin(&open, &other_body, now()).await, ClaimState::Different);
        }
    }

    pub async fn a_lapsed_claim_that_is_abandoned_is_new_again(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        let places = lapse(factory, &open, &claim).await;
        assert_eq!(begin(&open, &claim, now()).await, ClaimState::Lapsed { places });
        open.abandon(&claim).await.expect("the claim can be abandoned");
        assert_eq!(begin(&open, &claim, now()).await, ClaimState::New);
    }

    pub async fn a_claim_is_held_until_it_ends(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        begin(&open, &claim, now()).await;
        assert_eq!(open.still_holds(&claim).await, Ok(true));
        tokio::time::sleep(factory.lease()).await;
        assert_eq!(open.still_holds(&claim).await, Ok(true), "a claim does not lapse while its holder runs");
        assert_eq!(begin(&open, &claim, now()).await, ClaimState::UnderWay);
    }

    pub async fn one_of_many_claims_at_once_is_new(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Id));
        let begun = join_all((0..16).map(|_| begin(&open, &claim, now()))).await;
        assert_eq!(begun.iter().filter(|outcome| **outcome == ClaimState::New).count(), 1, "{begun:?}");
        assert_eq!(begun.iter().filter(|outcome| **outcome == ClaimState::UnderWay).count(), 15, "{begun:?}");
    }

    pub async fn a_claim_is_the_same_in_another_partition_of_its_topic(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        let answer = publish(&open, &claim, now()).await;
        let elsewhere = PartitionId::new(claim.partition.topic, claim.partition.index + 1);
        assert_eq!(begin(&open, &Claim { partition: elsewhere, ..claim }, now()).await, ClaimState::Earlier(answer));
    }

    pub async fn claims_of_other_topics_are_their_own(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        publish(&open, &claim, now()).await;
        let topic = TopicNumber(claim.topic.0 + 1);
        assert_eq!(begin(&open, &Claim { topic, ..claim }, now()).await, ClaimState::New);
    }

    pub async fn claims_of_other_owners_are_their_own(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        publish(&open, &claim, now()).await;
        assert_eq!(begin(&open, &Claim { owner: "another".to_owned(), ..claim }, now()).await, ClaimState::New);
    }

    pub async fn a_key_and_an_id_of_the_same_text_are_two_claims(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        publish(&open, &claim, now()).await;
        assert_eq!(begin(&open, &Claim { kind: ClaimKind::Id, ..claim }, now()).await, ClaimState::New);
    }

    pub async fn an_answer_stays_for_the_window(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        let published_at = now();
        let answer = publish(&open, &claim, published_at).await;
        let late = later(published_at, factory.window() - Duration::from_secs(1));
        assert_eq!(begin(&open, &claim, late).await, ClaimState::Earlier(answer));
    }

    pub async fn an_answer_is_forgotten_after_the_window(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        let published_at = now();
        publish(&open, &claim, published_at).await;
        let too_late = later(published_at, factory.window() + Duration::from_secs(1));
        let other_body = Claim { fingerprint: claim.fingerprint + 1, ..claim };
        assert_eq!(begin(&open, &other_body, too_late).await, ClaimState::New);
    }

    pub async fn an_id_is_found_again(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Id));
        assert_eq!(open.find(&claim.text).await, Ok(Vec::new()));
        let answer = publish(&open, &claim, now()).await;
        assert_eq!(open.find(&claim.text).await, Ok(vec![answer]));
        let longer = format!("{}x", claim.text);
        assert_eq!(open.find(&longer).await, Ok(Vec::new()), "another id that begins with it is another id");
        assert_eq!(open.find(&claim.text[..claim.text.len() - 1]).await, Ok(Vec::new()));
    }

    pub async fn an_id_published_by_several_is_found_oldest_first(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Id));
        let start = now();
        // The name of the last owner sorts first, and topic numbers decrease: only the time gives the right order.
        let publishers = ["zoe", "mia", "abe"].into_iter().zip(0..).map(|(owner, n)| Claim {
            owner: owner.to_owned(),
            partition: PartitionId::new(TopicNumber(claim.partition.topic.0 + 10 - n), 0),
            ..claim.clone()
        });
        let mut answers = Vec::new();
        for (publisher, n) in publishers.zip(0..) {
            answers.push(publish(&open, &publisher, later(start, Duration::from_millis(n))).await);
        }
        assert_eq!(open.find(&claim.text).await, Ok(answers));
    }

    pub async fn a_key_is_not_found_as_an_id(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Key));
        publish(&open, &claim, now()).await;
        assert_eq!(open.find(&claim.text).await, Ok(Vec::new()));
    }

    pub async fn an_unfinished_id_is_not_found(factory: &dyn ReceiptsFactory) {
        let (open, claim) = (factory.open().await, new_claim(ClaimKind::Id));
        begin(&open, &claim, now()).await;
        assert_eq!(open.find(&claim.text).await, Ok(Vec::new()));
    }
}

async fn begin(open: &OpenReceipts, claim: &Claim, now: Timestamp) -> ClaimState {
    open.begin(claim, 0, now).await.expect("the receipts answer")
}

/// Leaves a claim with an unknown outcome, and waits until it has lapsed. Returns the places where its record may be.
async fn lapse(factory: &dyn ReceiptsFactory, open: &OpenReceipts, claim: &Claim) -> Vec<(PartitionId, u64)> {
    assert_eq!(begin(open, claim, now()).await, ClaimState::New);
    open.leave(claim).await.expect("it can be left");
    tokio::time::sleep(factory.lease() + Duration::from_millis(20)).await;
    vec![(claim.partition, 0)]
}

/// Claims and finishes, like a publish.
async fn publish(open: &OpenReceipts, claim: &Claim, at: Timestamp) -> PublishReceipt {
    assert_eq!(begin(open, claim, at).await, ClaimState::New);
    let id = match claim.kind {
        ClaimKind::Id => claim.text.clone(),
        ClaimKind::Key => format!("minted-for-{}", claim.text),
    };
    let answer =
        PublishReceipt { id, partition: claim.partition, offset: claim.fingerprint % 1000, due: None, answered_at: at };
    open.finish(claim, answer.clone()).await.expect("the answer is kept");
    answer
}

/// A claim that is unique on this machine.
fn new_claim(kind: ClaimKind) -> Claim {
    static CLAIMS: AtomicU32 = AtomicU32::new(1);
    let number = CLAIMS.fetch_add(1, Ordering::Relaxed);
    Claim {
        owner: "publisher".to_owned(),
        kind,
        text: format!("{}-", unique_word()),
        topic: TopicNumber(7),
        partition: PartitionId::new(TopicNumber(7), 2),
        fingerprint: 0x5eed + u64::from(number),
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(time.as_millis() + by.as_millis() as i64)
}
