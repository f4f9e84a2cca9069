//! The loop of a view of the catalogue: it reads the entries again after each change.

use std::fmt::Display;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Catalogue, CatalogueError};

/// The pause between two reads of a catalogue that keeps changing.
const RELOAD_PAUSE: Duration = Duration::from_millis(50);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Calls `reload` after each change of the catalogue, until the shutdown. A failed reload is retried. `what` names the entries in the log.
pub(crate) async fn follow_catalogue<F, E>(
    catalogue: &dyn Catalogue,
    what: &str,
    reload: impl Fn() -> F,
    shutdown: &CancellationToken,
) where
    F: Future<Output = Result<(), E>>,
    E: From<CatalogueError> + Display,
{
    let mut seen = 0;
    loop {
        let changed = tokio::select! {
            changed = catalogue.changed(seen) => changed,
            () = shutdown.cancelled() => return,
        };
        let outcome = match changed {
            Ok(revision) => reload().await.map(|()| seen = revision),
            Err(error) => Err(error.into()),
        };
        let pause = match outcome {
            Ok(()) => RELOAD_PAUSE,
            Err(error) => {
                tracing::warn!(%error, "cannot read changed {what} from the catalogue; retrying");
                RETRY_AFTER
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => return,
        }
    }
}
