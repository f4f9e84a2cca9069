//! The paths of the log below a data folder. The log and its check use the same ones.

use std::path::{Path, PathBuf};

use crate::PartitionKey;

#[derive(Debug, Clone)]
pub(crate) struct LogLayout {
    pub root: PathBuf,
}

impl LogLayout {
    pub fn of(data: &Path) -> Self {
        Self { root: data.join("log") }
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    pub fn topics(&self) -> PathBuf {
        self.root.join("topics")
    }

    pub fn topic(&self, topic: u32) -> PathBuf {
        self.topics().join(topic.to_string())
    }

    pub fn partition(&self, key: PartitionKey) -> PathBuf {
        self.topic(key.topic).join(key.partition.to_string())
    }
}
