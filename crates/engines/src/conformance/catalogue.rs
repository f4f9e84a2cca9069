//! The contract of [`Catalogue`], as properties that every engine must have.
//!
//! Keys begin with a word that no other test of the machine uses, so that all properties can share one store.

use std::time::Duration;

use futures_util::future::join_all;
use whimbrel_model::ports::{Catalogue, CatalogueError};

use super::{Opened, Opens, unique_word};

#[doc(hidden)]
#[macro_export]
macro_rules! catalogue_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                a_key_that_was_never_written_is_not_there,
                a_value_is_returned_with_the_version_of_its_write,
                a_first_write_conflicts_if_the_key_exists,
                a_write_at_an_old_version_conflicts_and_changes_nothing,
                a_write_at_a_version_of_a_missing_key_conflicts,
                one_of_many_writers_at_one_version_wins,
                a_removed_key_is_gone,
                a_removal_at_an_old_version_conflicts,
                versions_grow_across_a_removal,
                a_prefix_lists_its_keys_in_order_and_no_others,
                an_empty_value_is_a_value,
                a_watcher_is_woken_by_a_write,
                a_watcher_is_woken_by_a_removal,
                a_watcher_misses_nothing_between_its_calls,
                a_watcher_without_news_waits,
                writes_survive_a_restart,
                versions_grow_across_a_restart,
            ]
        }
    };
}

crate::catalogue_properties! { conformance_exports }

/// An engine for the suite.
pub type CatalogueFactory = dyn Opens<dyn Catalogue>;
pub type OpenCatalogue = Opened<dyn Catalogue>;

/// The timeout of a watcher that must be woken.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time for which a test observes a watcher that must keep waiting.
const STILLNESS: Duration = Duration::from_millis(200);

mod properties {
    use super::*;

    pub async fn a_key_that_was_never_written_is_not_there(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        assert_eq!(open.get(&key).await, Ok(None));
    }

    pub async fn a_value_is_returned_with_the_version_of_its_write(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let first = put(&open, &key, b"one", None).await;
        assert_value(&open, &key, b"one", first).await;
        let second = put(&open, &key, b"two", Some(first)).await;
        assert!(second > first);
        assert_value(&open, &key, b"two", second).await;
    }

    pub async fn a_first_write_conflicts_if_the_key_exists(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let version = put(&open, &key, b"mine", None).await;
        assert_eq!(open.put(&key, b"theirs".to_vec(), None).await, Err(conflict(&key, Some(version))));
        assert_value(&open, &key, b"mine", version).await;
    }

    pub async fn a_write_at_an_old_version_conflicts_and_changes_nothing(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let old = put(&open, &key, b"one", None).await;
        let new = put(&open, &key, b"two", Some(old)).await;
        assert_eq!(open.put(&key, b"late".to_vec(), Some(old)).await, Err(conflict(&key, Some(new))));
        assert_value(&open, &key, b"two", new).await;
    }

    pub async fn a_write_at_a_version_of_a_missing_key_conflicts(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        assert_eq!(open.put(&key, b"x".to_vec(), Some(1)).await, Err(conflict(&key, None)));
        assert_eq!(open.get(&key).await, Ok(None));
    }

    pub async fn one_of_many_writers_at_one_version_wins(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let mut version = put(&open, &key, b"start", None).await;
        for _ in 0..5 {
            let writes = (0..16u8).map(|writer| open.put(&key, vec![writer], Some(version)));
            let outcomes = join_all(writes).await;
            let winners: Vec<u8> = (0u8..).zip(&outcomes).filter(|(_, won)| won.is_ok()).map(|(n, _)| n).collect();
            assert_eq!(winners.len(), 1, "{outcomes:?}");
            let found = open.get(&key).await.expect("it can be read").expect("it is there");
            assert_eq!(found.value, winners);
            version = found.version;
        }
    }

    pub async fn a_removed_key_is_gone(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let version = put(&open, &key, b"x", None).await;
        assert_eq!(open.remove(&key, version).await, Ok(()));
        assert_eq!(open.get(&key).await, Ok(None));
        assert_eq!(open.list(&key).await, Ok(Vec::new()));
    }

    pub async fn a_removal_at_an_old_version_conflicts(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let old = put(&open, &key, b"one", None).await;
        let new = put(&open, &key, b"two", Some(old)).await;
        assert_eq!(open.remove(&key, old).await, Err(conflict(&key, Some(new))));
        assert_value(&open, &key, b"two", new).await;
        assert_eq!(open.remove(&key, new).await, Ok(()));
        assert_eq!(open.remove(&key, new).await, Err(conflict(&key, None)));
    }

    pub async fn versions_grow_across_a_removal(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let mut last = 0;
        for round in 0..4 {
            let version = put(&open, &key, b"x", None).await;
            assert!(round == 0 || version > last, "{version} does not follow {last}");
            open.remove(&key, version).await.expect("it can be removed");
            last = version;
        }
    }

    pub async fn a_prefix_lists_its_keys_in_order_and_no_others(factory: &CatalogueFactory) {
        let (open, prefix) = (factory.open().await, new_key());
        for name in ["b", "a/2", "a/10", "a", "c"] {
            put(&open, &format!("{prefix}/{name}"), name.as_bytes(), None).await;
        }
        put(&open, &format!("{prefix}0"), b"after the prefix", None).await;
        put(&open, &format!("{prefix}."), b"before the prefix", None).await;
        let names = |listed: Vec<(String, _)>| -> Vec<String> {
            listed.into_iter().map(|(key, _)| key.trim_start_matches(&format!("{prefix}/")).to_owned()).collect()
        };
        let all = open.list(&format!("{prefix}/")).await.expect("it can be listed");
        assert!(all.iter().all(|(key, found)| key.as_bytes().ends_with(&found.value)));
        assert_eq!(names(all), ["a", "a/10", "a/2", "b", "c"]);
        let some = open.list(&format!("{prefix}/a/")).await.expect("it can be listed");
        assert_eq!(names(some), ["a/10", "a/2"]);
    }

    pub async fn an_empty_value_is_a_value(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let version = put(&open, &key, b"", None).await;
        assert_value(&open, &key, b"", version).await;
    }

    pub async fn a_watcher_is_woken_by_a_write(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let version = put(&open, &key, b"x", None).await;
        let seen = settle(&open).await;
        let (woken, _) = tokio::join!(changed(&open, seen), put(&open, &key, b"y", Some(version)));
        assert!(woken > seen);
    }

    pub async fn a_watcher_is_woken_by_a_removal(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let version = put(&open, &key, b"x", None).await;
        let seen = settle(&open).await;
        let (woken, removed) = tokio::join!(changed(&open, seen), open.remove(&key, version));
        assert_eq!(removed, Ok(()));
        assert!(woken > seen);
    }

    pub async fn a_watcher_misses_nothing_between_its_calls(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let mut version = put(&open, &key, b"x", None).await;
        let mut seen = settle(&open).await;
        for n in 0..20u8 {
            version = put(&open, &key, &[n], Some(version)).await;
            let next = changed(&open, seen).await;
            assert!(next > seen);
            seen = next;
            let found = open.get(&key).await.expect("it can be read").expect("it is there");
            assert_eq!(found.version, version, "a read returns the change that woke the watcher");
        }
    }

    pub async fn a_watcher_without_news_waits(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        put(&open, &key, b"x", None).await;
        let seen = settle(&open).await;
        // On a shared store, writes of other tests may wake it, with a later revision.
        if let Ok(woken) = tokio::time::timeout(STILLNESS, open.changed(seen)).await {
            assert!(woken.expect("it can be watched") > seen, "woken without a change");
        }
    }

    pub async fn writes_survive_a_restart(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let removed = format!("{key}-removed");
        let version = put(&open, &key, b"kept", None).await;
        let gone = put(&open, &removed, b"removed", None).await;
        open.remove(&removed, gone).await.expect("it can be removed");
        let open = factory.reopen(open).await;
        assert_value(&open, &key, b"kept", version).await;
        assert_eq!(open.get(&removed).await, Ok(None));
    }

    pub async fn versions_grow_across_a_restart(factory: &CatalogueFactory) {
        let (open, key) = (factory.open().await, new_key());
        let removed = format!("{key}-removed");
        let version = put(&open, &key, b"one", None).await;
        let gone = put(&open, &removed, b"one", None).await;
        open.remove(&removed, gone).await.expect("it can be removed");
        let open = factory.reopen(open).await;
        assert!(put(&open, &removed, b"two", None).await > gone, "also if the key was removed before the restart");
        assert!(put(&open, &key, b"two", Some(version)).await > version);
    }
}

async fn put(open: &OpenCatalogue, key: &str, value: &[u8], expected: Option<u64>) -> u64 {
    open.put(key, value.to_vec(), expected).await.expect("the write is taken")
}

async fn assert_value(open: &OpenCatalogue, key: &str, value: &[u8], version: u64) {
    let found = open.get(key).await.expect("it can be read").expect("it is there");
    assert_eq!((found.value.as_slice(), found.version), (value, version));
}

async fn changed(open: &OpenCatalogue, seen: u64) -> u64 {
    let changed = tokio::time::timeout(PATIENCE, open.changed(seen)).await;
    changed.expect("the watcher is woken").expect("the catalogue can be watched")
}

/// The present revision. After at least one write, a watch from zero returns at once, until there is nothing newer.
async fn settle(open: &OpenCatalogue) -> u64 {
    let mut seen = changed(open, 0).await;
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(20), open.changed(seen)).await {
        seen = next.expect("the catalogue can be watched");
    }
    seen
}

fn conflict(key: &str, found: Option<u64>) -> CatalogueError {
    CatalogueError::Conflict { key: key.to_owned(), found }
}

fn new_key() -> String {
    format!("conformance/{}", unique_word())
}
