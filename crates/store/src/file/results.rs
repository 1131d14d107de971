//! Errors and warnings: `-results.gz`.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::null_is_empty;

/// The errors and warnings of a backup or restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// Things that could not be done.
    #[serde(deserialize_with = "null_is_empty")]
    pub errors: Messages,
    /// Things that were done, but differently than a user may expect.
    #[serde(deserialize_with = "null_is_empty")]
    pub warnings: Messages,
}

/// Messages, by their subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Messages {
    /// About the run itself: plugins, the bucket.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub velero: Vec<String>,
    /// About cluster-scoped objects.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub cluster: Vec<String>,
    /// About objects in a namespace.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<String, Vec<String>>,
}

impl Messages {
    /// Adds a message about an object; `namespace` is empty for a cluster-scoped one.
    pub fn add(&mut self, namespace: &str, message: impl Into<String>) {
        let list = match namespace {
            "" => &mut self.cluster,
            namespace => self.namespaces.entry(namespace.to_owned()).or_default(),
        };
        list.push(message.into());
    }

    /// Adds messages, without duplicates.
    pub fn merge(&mut self, more: Self) {
        fn extend(list: &mut Vec<String>, more: Vec<String>) {
            // By hash and not one by one: there may be ten thousand on each side.
            let mut known: HashSet<&str> = list.iter().map(String::as_str).collect();
            let is_new: Vec<bool> = more.iter().map(|message| known.insert(message)).collect();
            let new = more.into_iter().zip(is_new);
            list.extend(new.filter_map(|(message, is_new)| is_new.then_some(message)));
        }
        extend(&mut self.velero, more.velero);
        extend(&mut self.cluster, more.cluster);
        for (namespace, messages) in more.namespaces {
            extend(self.namespaces.entry(namespace).or_default(), messages);
        }
    }

    /// Number of messages.
    pub fn count(&self) -> usize {
        let namespaces: usize = self.namespaces.values().map(Vec::len).sum();
        self.velero.len() + self.cluster.len() + namespaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as a report holds, twice: a comparison of each with each would take minutes.
    #[test]
    fn merged_messages_keep_their_order_and_are_there_once() {
        let numbered = |range: std::ops::Range<usize>| Messages {
            velero: range.map(|number| format!("message {number}")).collect(),
            ..Messages::default()
        };
        let mut merged = numbered(0..100_000);
        let mut more = numbered(50_000..150_000);
        more.velero.push("message 7".to_owned());
        more.velero.push("message 149999".to_owned());
        merged.merge(more);
        assert_eq!(merged.velero, numbered(0..150_000).velero);
    }
}
