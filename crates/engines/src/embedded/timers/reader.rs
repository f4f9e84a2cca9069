//! The one thread that answers questions for a few ids.
//!
//! The LSM lets nobody read while it notes a table that it has written, and it syncs that note to the disk: a question that is asked on
//! the center's own thread would hold all shards up as long. Here only those wait who asked for something that memory does not know.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use whimbrel_model::HoldId;
use whimbrel_model::ports::{Known, TimersError};

use super::Inner;
use super::read::Read;

/// Questions that wait for their turn; more of them wait to be taken.
const QUESTIONS_WAITING_MAX: usize = 1024;

struct Question {
    shard: u32,
    ids: Vec<HoldId>,
    answer: oneshot::Sender<Read<Vec<Option<Known>>>>,
}

/// The thread, which ends when this is dropped, after the questions that it took.
pub(super) struct Reader {
    questions: Option<mpsc::Sender<Question>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub fn start(inner: Arc<Inner>) -> Result<Self, TimersError> {
        let (questions, mut asked) = mpsc::channel::<Question>(QUESTIONS_WAITING_MAX);
        let thread = std::thread::Builder::new().name("holds-reader".to_owned()).spawn(move || {
            while let Some(question) = asked.blocking_recv() {
                // Who asked may be gone.
                if !question.answer.is_closed() {
                    let _ = question.answer.send(inner.get(question.shard, &question.ids));
                }
            }
        });
        let thread = thread.map_err(|error| TimersError::Unavailable(error.to_string()))?;
        Ok(Self { questions: Some(questions), thread: Some(thread) })
    }

    pub async fn get(&self, shard: u32, ids: Vec<HoldId>) -> Read<Vec<Option<Known>>> {
        let (answer, answered) = oneshot::channel();
        if let Some(questions) = &self.questions {
            // Where the thread is gone, so is the answer.
            let _ = questions.send(Question { shard, ids, answer }).await;
        }
        answered.await.unwrap_or_else(|_| Err(TimersError::Unavailable("nobody reads any more".to_owned())))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.questions.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
