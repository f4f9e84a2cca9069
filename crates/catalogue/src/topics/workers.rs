//! The choice of workers for the callbacks of a topic, and changes of it. Pure.

use whimbrel_model::subscription::WorkerChoice;

use super::TopicError;

const POOL_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkersChange {
    /// Replace the choice. `None`: all workers.
    Set(Option<WorkerChoice>),
    Add(String),
    Remove(String),
}

impl WorkersChange {
    pub(super) fn applied(
        self,
        topic: &str,
        before: Option<&WorkerChoice>,
    ) -> Result<Option<WorkerChoice>, TopicError> {
        let wrong = |why| TopicError::Workers { topic: topic.to_owned(), why };
        let (id, adds) = match self {
            Self::Set(choice) => return Ok(choice),
            Self::Add(id) => (id, true),
            Self::Remove(id) => (id, false),
        };
        let mut choice = before.cloned().unwrap_or_default();
        if choice.count.is_some() {
            return Err(wrong("its workers are chosen by `count`: name a pool first"));
        }
        choice.pool.retain(|name| name != "*");
        let at = choice.pool.iter().position(|name| *name == id);
        match (at, adds) {
            (Some(_), true) => {}
            (None, true) if choice.pool.len() >= POOL_MAX => return Err(wrong("its pool has 100 workers, the limit")),
            (None, true) => choice.pool.push(id),
            (None, false) => return Err(TopicError::UnknownWorker { topic: topic.to_owned(), id }),
            (Some(_), false) if choice.pool.len() == 1 => {
                return Err(wrong("this is its last worker: add another first, or use `*` for all workers"));
            }
            (Some(at), false) => {
                choice.pool.remove(at);
            }
        }
        Ok(Some(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(names: &[&str]) -> WorkerChoice {
        WorkerChoice { pool: names.iter().map(|name| (*name).to_owned()).collect(), ..WorkerChoice::default() }
    }

    fn add(before: Option<&WorkerChoice>, id: &str) -> Option<WorkerChoice> {
        WorkersChange::Add(id.to_owned()).applied("orders", before).unwrap()
    }

    #[test]
    fn a_pool_grows_and_shrinks_by_name() {
        let one = add(None, "a");
        assert_eq!(one, Some(pool(&["a"])), "all workers were chosen before");
        let two = add(one.as_ref(), "b");
        assert_eq!(two, Some(pool(&["a", "b"])));
        assert_eq!(add(two.as_ref(), "b"), two, "a repeat changes nothing");
        assert_eq!(add(Some(&pool(&["*"])), "a"), one);
        let less = WorkersChange::Remove("a".to_owned()).applied("orders", two.as_ref());
        assert_eq!(less, Ok(Some(pool(&["b"]))));
    }

    #[test]
    fn the_last_worker_and_an_unknown_worker_cannot_be_removed() {
        let remove = |id: &str| WorkersChange::Remove(id.to_owned()).applied("orders", Some(&pool(&["a"])));
        assert!(matches!(remove("a"), Err(TopicError::Workers { .. })));
        assert!(matches!(remove("b"), Err(TopicError::UnknownWorker { .. })));
        let counted = WorkerChoice { count: Some(3), ..WorkerChoice::default() };
        assert!(WorkersChange::Add("a".to_owned()).applied("orders", Some(&counted)).is_err());
    }
}
