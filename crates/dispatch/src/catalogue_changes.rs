//! The changes of the catalogue that a subscription's runner waits for: its own, each made once at a time, and those that requests wait for.
//! Pure. `R` identifies a request.

pub struct CatalogueChanges<R> {
    is_disabling: bool,
    /// The runs of completed replays that are being removed.
    ending: Vec<u32>,
    /// Requests that wait until the runner follows that version of the catalogue's entry.
    waiting: Vec<(u64, R)>,
}

impl<R> Default for CatalogueChanges<R> {
    fn default() -> Self {
        Self { is_disabling: false, ending: Vec::new(), waiting: Vec::new() }
    }
}

impl<R> CatalogueChanges<R> {
    /// Begins to disable the subscription. Returns false if that is in progress.
    pub fn begin_disable(&mut self) -> bool {
        !std::mem::replace(&mut self.is_disabling, true)
    }

    pub fn disabled(&mut self) {
        self.is_disabling = false;
    }

    /// Begins to remove a completed replay. Returns false if that is in progress.
    pub fn begin_end(&mut self, run: u32) -> bool {
        let is_new = !self.ending.contains(&run);
        if is_new {
            self.ending.push(run);
        }
        is_new
    }

    pub fn ended(&mut self, run: u32) {
        self.ending.retain(|each| *each != run);
    }

    /// Adds a request that waits for a version.
    pub fn wait(&mut self, version: u64, request: R) {
        self.waiting.push((version, request));
    }

    /// Takes the requests that wait for this version or an earlier one.
    pub fn take_reached(&mut self, version: u64) -> impl Iterator<Item = R> + use<R> {
        let (reached, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|(of, _)| *of <= version);
        self.waiting = waiting;
        let reached: Vec<_> = reached;
        reached.into_iter().map(|(_, request)| request)
    }

    /// Drops the requests whose callers have left.
    pub fn drop_waiting(&mut self, has_left: impl Fn(&R) -> bool) {
        self.waiting.retain(|(_, request)| !has_left(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_their_version() {
        let mut changes = CatalogueChanges::default();
        changes.wait(3, "a");
        changes.wait(4, "b");
        changes.wait(5, "c");
        changes.drop_waiting(|request| *request == "b");
        assert_eq!(changes.take_reached(4).collect::<Vec<_>>(), ["a"]);
        assert_eq!(changes.take_reached(5).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn a_change_is_made_once_at_a_time() {
        let mut changes = CatalogueChanges::<()>::default();
        assert!(changes.begin_disable() && !changes.begin_disable());
        changes.disabled();
        assert!(changes.begin_disable());
        assert!(changes.begin_end(7) && !changes.begin_end(7) && changes.begin_end(8));
        changes.ended(7);
        assert!(changes.begin_end(7) && !changes.begin_end(8));
    }
}
