//! Pods whose applications can be frozen.

use std::collections::BTreeMap;

/// Command of a pre-hook.
pub(crate) const FREEZE: &str = "freeze";
/// Command of a post-hook.
pub(crate) const THAW: &str = "thaw";

/// Freezes of pods, by namespace and name.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    frozen: BTreeMap<(String, String), bool>,
}

impl Pods {
    /// Runs a command in a pod. Returns false if there is no such command.
    pub(crate) fn run(&mut self, namespace: &str, pod: &str, command: &[String]) -> bool {
        let is_frozen = match command.first().map(String::as_str) {
            Some(FREEZE) => true,
            Some(THAW) => false,
            _ => return false,
        };
        self.frozen.insert((namespace.to_owned(), pod.to_owned()), is_frozen);
        true
    }

    /// Pods that are frozen now.
    pub(crate) fn frozen(&self) -> Vec<String> {
        let frozen = self.frozen.iter().filter(|(_, is_frozen)| **is_frozen);
        frozen.map(|((namespace, name), _)| format!("{namespace}/{name}")).collect()
    }
}
