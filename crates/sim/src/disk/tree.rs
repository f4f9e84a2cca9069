//! The folders and names: as programs see them, and as they would be after a power loss.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::contents::{FileContents, PAGE_BYTES};
use crate::rng::Rng;

const TOP: u64 = 0;

pub struct Tree {
    nodes: BTreeMap<u64, TreeNode>,
    next_node: u64,
    /// Changes of names that are not durable, in order. The changes of one entry happen together or not at all.
    pending: Vec<NameChange>,
    /// The bytes of all files with a name.
    pub used_bytes: u64,
}

enum TreeNode {
    File(FileContents),
    Folder(Folder),
}

#[derive(Default)]
struct Folder {
    durable: BTreeMap<String, u64>,
    current: BTreeMap<String, u64>,
}

struct NameChange {
    folder: u64,
    changes: Vec<(String, Option<u64>)>,
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

fn names(path: &Path) -> impl Iterator<Item = String> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    })
}

impl Tree {
    pub fn new() -> Self {
        let nodes = BTreeMap::from([(TOP, TreeNode::Folder(Folder::default()))]);
        Self { nodes, next_node: TOP + 1, pending: Vec::new(), used_bytes: 0 }
    }

    pub fn find(&self, path: &Path) -> io::Result<u64> {
        names(path).try_fold(TOP, |node, name| match self.nodes.get(&node) {
            Some(TreeNode::Folder(folder)) => folder.current.get(&name).copied().ok_or_else(|| not_found(path)),
            _ => Err(not_found(path)),
        })
    }

    fn folder(&self, node: u64) -> Option<&Folder> {
        match self.nodes.get(&node) {
            Some(TreeNode::Folder(folder)) => Some(folder),
            _ => None,
        }
    }

    fn folder_and_name(&self, path: &Path) -> io::Result<(u64, String)> {
        let folder = self.find(path.parent().unwrap_or(Path::new("/")))?;
        let name = names(path).last().ok_or_else(|| not_found(path))?;
        self.folder(folder).ok_or_else(|| not_found(path))?;
        Ok((folder, name))
    }

    pub fn file(&mut self, node: u64) -> io::Result<&mut FileContents> {
        match self.nodes.get_mut(&node) {
            Some(TreeNode::File(contents)) => Ok(contents),
            _ => Err(io::Error::new(io::ErrorKind::IsADirectory, "not a file")),
        }
    }

    pub fn open(&mut self, path: &Path) -> io::Result<u64> {
        let node = self.find(path)?;
        self.file(node)?;
        Ok(node)
    }

    pub fn create(&mut self, path: &Path) -> io::Result<u64> {
        if let Ok(node) = self.open(path) {
            return Ok(node);
        }
        let (folder, name) = self.folder_and_name(path)?;
        Ok(self.add(folder, name, TreeNode::File(FileContents::default())))
    }

    fn add(&mut self, folder: u64, name: String, node: TreeNode) -> u64 {
        let number = self.next_node;
        self.next_node += 1;
        self.nodes.insert(number, node);
        self.change(folder, vec![(name, Some(number))]);
        number
    }

    fn change(&mut self, folder: u64, changes: Vec<(String, Option<u64>)>) {
        let Some(TreeNode::Folder(state)) = self.nodes.get_mut(&folder) else { return };
        apply(&mut state.current, &changes);
        self.pending.push(NameChange { folder, changes });
    }

    pub fn create_dirs(&mut self, path: &Path) -> io::Result<()> {
        let mut node = TOP;
        for name in names(path) {
            let folder = self.folder(node).ok_or_else(|| not_found(path))?;
            node = match folder.current.get(&name) {
                Some(child) => *child,
                None => self.add(node, name, TreeNode::Folder(Folder::default())),
            };
        }
        Ok(())
    }

    /// Renames within one folder; the log needs nothing else.
    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from)?;
        let (folder, old_name) = self.folder_and_name(from)?;
        let (target, new_name) = self.folder_and_name(to)?;
        assert_eq!(folder, target, "the simulated disk renames within a folder only");
        if let Ok(replaced) = self.find(to) {
            if self.folder(replaced).is_some_and(|folder| !folder.current.is_empty()) {
                return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, "the new name is a folder"));
            }
            self.used_bytes -= self.page_bytes(replaced);
        }
        self.change(folder, vec![(old_name, None), (new_name, Some(node))]);
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let node = self.open(path)?;
        let (folder, name) = self.folder_and_name(path)?;
        self.used_bytes -= self.page_bytes(node);
        self.change(folder, vec![(name, None)]);
        Ok(())
    }

    pub fn remove_dirs(&mut self, path: &Path) -> io::Result<()> {
        for name in self.list(path) {
            let child = path.join(name);
            match self.open(&child) {
                Ok(_) => self.remove_file(&child)?,
                Err(_) => self.remove_dirs(&child)?,
            }
        }
        let (folder, name) = self.folder_and_name(path)?;
        self.change(folder, vec![(name, None)]);
        Ok(())
    }

    pub fn list(&self, path: &Path) -> Vec<String> {
        let folder = self.find(path).ok().and_then(|node| self.folder(node));
        folder.map_or_else(Vec::new, |folder| folder.current.keys().cloned().collect())
    }

    fn page_bytes(&self, node: u64) -> u64 {
        match self.nodes.get(&node) {
            Some(TreeNode::File(contents)) => (contents.pages() * PAGE_BYTES) as u64,
            _ => 0,
        }
    }

    /// Makes the names in a folder durable.
    pub fn sync_folder(&mut self, folder: u64) {
        let (synced, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|change| change.folder == folder);
        self.pending = pending;
        self.make_durable(synced);
    }

    fn make_durable(&mut self, changes: Vec<NameChange>) {
        for change in changes {
            if let Some(TreeNode::Folder(folder)) = self.nodes.get_mut(&change.folder) {
                apply(&mut folder.durable, &change.changes);
            }
        }
    }

    /// All files and folders at or below a node. A folder comes before its contents.
    pub fn below(&self, node: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut files, mut folders, mut open) = (Vec::new(), Vec::new(), vec![node]);
        while let Some(node) = open.pop() {
            match self.nodes.get(&node) {
                Some(TreeNode::File(_)) => files.push(node),
                Some(TreeNode::Folder(folder)) => {
                    folders.push(node);
                    open.extend(folder.current.values());
                }
                None => {}
            }
        }
        (files, folders)
    }

    /// All files with a name, in order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        let mut open = vec![(PathBuf::from("/"), TOP)];
        while let Some((path, node)) = open.pop() {
            match self.nodes.get(&node) {
                Some(TreeNode::File(_)) => found.push((path, node)),
                Some(TreeNode::Folder(folder)) => {
                    open.extend(folder.current.iter().map(|(name, node)| (path.join(name), *node)));
                }
                None => {}
            }
        }
        found.sort();
        found
    }

    /// A power loss. The unsynced changes of names survive in order up to some point, as on a journaling file system. Or each survives at
    /// random, which is all that the standards guarantee.
    pub fn settle(&mut self, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let kept = if rng.one_in(2) {
            let count = rng.below(pending.len() as u64 + 1) as usize;
            pending.into_iter().take(count).collect()
        } else {
            pending.into_iter().filter(|_| rng.one_in(2)).collect()
        };
        self.make_durable(kept);
        for node in self.nodes.values_mut() {
            if let TreeNode::Folder(folder) = node {
                folder.current.clone_from(&folder.durable);
            }
        }
        let (files, folders) = self.below(TOP);
        let kept: BTreeSet<u64> = files.iter().chain(&folders).copied().collect();
        self.nodes.retain(|node, _| kept.contains(node));
        for node in self.nodes.values_mut() {
            if let TreeNode::File(contents) = node {
                contents.settle(rng);
            }
        }
        self.used_bytes = files.iter().map(|node| self.page_bytes(*node)).sum();
    }
}

fn apply(names: &mut BTreeMap<String, u64>, changes: &[(String, Option<u64>)]) {
    for (name, node) in changes {
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}
