//! Looking a name up: once at a time for each place.
//!
//! The machine's resolver takes a thread for as long as it waits for an answer, also when nobody waits any more, and those threads are
//! few and everybody's: a name whose servers are silent must not take them all from the others.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::net::lookup_host;
use tokio::sync::Semaphore;

use super::limits::BROUGHT_LOOKUPS_MAX;

/// Lookups of places that messages brought themselves: there are as many as anybody likes to name.
static BROUGHT: Semaphore = Semaphore::const_new(BROUGHT_LOOKUPS_MAX);

type Found = Result<Vec<SocketAddr>, Arc<str>>;

/// The lookup of one place that is under way, if any.
pub(super) struct Names {
    is_brought: bool,
    under_way: Mutex<Option<Shared<BoxFuture<'static, Found>>>>,
}

impl Names {
    pub(super) fn new(is_brought: bool) -> Self {
        Self { is_brought, under_way: Mutex::default() }
    }

    /// Joins the lookup that is under way, or begins one. Every attempt that begins after its end has one of its own.
    pub(super) async fn look_up(&self, host: &str, port: u16) -> Found {
        let lookup = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            match under_way.as_ref().filter(|lookup| lookup.peek().is_none()) {
                Some(lookup) => lookup.clone(),
                None => {
                    let lookup = ask(host.to_owned(), port, self.is_brought).boxed().shared();
                    // It ends by itself, so that nobody comes late to an answer of long ago.
                    tokio::spawn(lookup.clone());
                    under_way.insert(lookup).clone()
                }
            }
        };
        lookup.await
    }
}

async fn ask(host: String, port: u16, is_brought: bool) -> Found {
    let _permit = if is_brought { BROUGHT.acquire().await.ok() } else { None };
    match lookup_host((host, port)).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(error.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_asks_meanwhile_gets_the_same_answer_and_later_ones_their_own() {
        let names = Names::new(false);
        let has_port = |found: &Found, port| found.as_ref().is_ok_and(|all| all.iter().all(|one| one.port() == port));
        let (one, other) =
            futures_util::future::join(names.look_up("localhost", 7), names.look_up("localhost", 9)).await;
        assert!(has_port(&one, 7) && has_port(&other, 7), "there was one lookup: {one:?}, {other:?}");
        assert!(has_port(&names.look_up("localhost", 9).await, 9), "the next has its own");
    }
}
