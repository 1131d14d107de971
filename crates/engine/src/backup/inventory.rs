//! Names of the archive's items, for `-resource-list.json.gz`.
//!
//! The file lists the names of each kind in order, and items arrive in any order. A list of all names would be the
//! largest thing in memory. So names are compressed as they come, and sorted a range of kinds and namespaces at a time.
//! They stay in memory, because items are recorded while an application is frozen, which must not wait for a disk.

mod names;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use bowline_store::BackupFile;
use bowline_store::file::BackupContent;
use parking_lot::Mutex;
use serde::ser::{Error as _, SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use self::names::{NameBatch, NameReader, NameRecords};
use crate::item::Object;
use crate::resource::GroupResource;

/// Bytes of names that are sorted in memory at once.
const BATCH_BYTES: u64 = 2 << 20;
/// A batch takes at least this part of all names. Each batch reads all of them, so more names make larger batches, not
/// many more of them.
const BATCH_PART: u64 = 16;

/// Names of stored items.
#[derive(Debug, Default)]
pub struct Inventory(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    records: NameRecords,
    kinds: Vec<Kind>,
    kind_numbers: HashMap<String, u32>,
    namespaces: Vec<Box<str>>,
    namespace_numbers: HashMap<Box<str>, u32>,
    groups: Vec<Group>,
    group_numbers: HashMap<(u32, u32), u32>,
    count: usize,
}

#[derive(Debug)]
struct Kind {
    /// `apps/v1/Deployment`
    text: String,
    resource: GroupResource,
}

/// Items of one kind in one namespace.
#[derive(Clone, Copy, Debug)]
struct Group {
    kind: u32,
    namespace: u32,
    /// Bytes of the names.
    bytes: u64,
}

impl Inventory {
    /// Records an item.
    pub(super) fn add(&self, object: &Object) {
        let mut names = self.0.lock();
        let group = names.group_of(object);
        names.records.push(group, &object.name);
        names.groups[group as usize].bytes += object.name.len() as u64;
        names.count += 1;
    }

    /// Number of items.
    pub fn count(&self) -> usize {
        self.0.lock().count
    }

    /// The resources of the items.
    pub(super) fn resources(&self) -> Vec<GroupResource> {
        let names = self.0.lock();
        let resources: BTreeSet<&GroupResource> =
            names.kinds.iter().map(|kind| &kind.resource).collect();
        resources.into_iter().cloned().collect()
    }
}

impl Names {
    fn group_of(&mut self, object: &Object) -> u32 {
        let text = format!("{}/{}", object.resource.api_version(), object.resource.kind);
        let kind = if let Some(number) = self.kind_numbers.get(&text) {
            *number
        } else {
            let number = number_of(self.kinds.len());
            self.kind_numbers.insert(text.clone(), number);
            self.kinds.push(Kind { text, resource: object.resource.id.clone() });
            number
        };
        let namespace = if let Some(number) = self.namespace_numbers.get(object.namespace.as_str())
        {
            *number
        } else {
            let number = number_of(self.namespaces.len());
            let name: Box<str> = object.namespace.as_str().into();
            self.namespace_numbers.insert(name.clone(), number);
            self.namespaces.push(name);
            number
        };
        let groups = &mut self.groups;
        *self.group_numbers.entry((kind, namespace)).or_insert_with(|| {
            groups.push(Group { kind, namespace, bytes: 0 });
            number_of(groups.len() - 1)
        })
    }

    /// Groups in the order of the file: by kind, then by namespace.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..number_of(self.groups.len())).collect();
        // The order of whole names: that of `a/` and `a-b/`, not that of `a` and `a-b`.
        let whole = |group: &Group| {
            let namespace = &self.namespaces[group.namespace as usize];
            namespace.bytes().chain(Some(b'/'))
        };
        order.sort_unstable_by(|one, other| {
            let (one, other) = (&self.groups[*one as usize], &self.groups[*other as usize]);
            let kind = |group: &Group| self.kinds[group.kind as usize].text.as_str();
            kind(one).cmp(kind(other)).then_with(|| whole(one).cmp(whole(other)))
        });
        order
    }

    /// Ranks of each kind, in this order of groups.
    fn kind_ranges(&self, order: &[u32]) -> Vec<Range<usize>> {
        let kind = |rank: usize| self.groups[order[rank] as usize].kind;
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for rank in 0..order.len() {
            match ranges.last_mut() {
                Some(range) if kind(range.start) == kind(rank) => range.end = rank + 1,
                _ => ranges.push(rank..rank + 1),
            }
        }
        ranges
    }
}

fn number_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl BackupContent for Inventory {
    const FILE: BackupFile = BackupFile::ResourceList;
}

/// The format of [`bowline_store::file::ResourceList`], which is the type that reads it.
impl Serialize for Inventory {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let names = self.0.lock();
        let order = names.order();
        let total: u64 = names.groups.iter().map(|group| group.bytes).sum();
        let reader = NameReader {
            records: &names.records,
            groups: &names.groups,
            order: &order,
            batch_bytes: BATCH_BYTES.max(total / BATCH_PART),
        };
        let batch = RefCell::new(NameBatch::default());
        let kinds = names.kind_ranges(&order);
        let mut map = to.serialize_map(Some(kinds.len()))?;
        for ranks in kinds {
            let first = names.groups[order[ranks.start] as usize];
            let kind = KindNames { names: &names, reader: &reader, batch: &batch, ranks };
            map.serialize_entry(&names.kinds[first.kind as usize].text, &kind)?;
        }
        map.end()
    }
}

/// The names of one kind, by namespace.
struct KindNames<'a> {
    names: &'a Names,
    reader: &'a NameReader<'a>,
    /// Names that were read last.
    batch: &'a RefCell<NameBatch>,
    ranks: Range<usize>,
}

impl Serialize for KindNames<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut sequence = to.serialize_seq(None)?;
        for rank in self.ranks.clone() {
            let mut batch = self.batch.borrow_mut();
            if !batch.contains(rank) {
                // The previous batch must be gone before the next one is read.
                drop(std::mem::take(&mut *batch));
                *batch = self.reader.read_batch(rank).map_err(S::Error::custom)?;
            }
            let group = &self.names.groups[self.reader.order[rank] as usize];
            let namespace = &self.names.namespaces[group.namespace as usize];
            for name in batch.names(rank) {
                sequence.serialize_element(&QualifiedName { namespace, name })?;
            }
        }
        sequence.end()
    }
}

/// `ns/name`, or `name` where there is no namespace.
struct QualifiedName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Serialize for QualifiedName<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.namespace {
            "" => to.serialize_str(self.name),
            namespace => to.collect_str(&format_args!("{namespace}/{}", self.name)),
        }
    }
}
