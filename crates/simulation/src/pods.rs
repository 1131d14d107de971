//! Pods whose applications can be frozen.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::os;

/// Command of a pre-hook.
pub(crate) const FREEZE: &str = "freeze";
/// Command of a post-hook.
pub(crate) const THAW: &str = "thaw";

/// Freezes of pods, by namespace and name.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    frozen: BTreeMap<(String, String), bool>,
    /// Ends of the last commands.
    busy_until: BTreeMap<(String, String), Duration>,
}

impl Pods {
    /// Begins a command that takes so long. Returns the time until its end.
    ///
    /// Commands for one application exclude each other, as those of databases do: a thaw waits for a freeze that was
    /// started before. No server could help an application without such an order. If the connection of a pre-hook is
    /// cut, nothing tells the server how long the command still runs, so a post-hook might overtake it.
    pub(crate) fn begin(&mut self, namespace: &str, pod: &str, duration: Duration) -> Duration {
        let now = os::now();
        let pod = (namespace.to_owned(), pod.to_owned());
        let end = self.busy_until.get(&pod).copied().unwrap_or_default().max(now) + duration;
        self.busy_until.insert(pod, end);
        end.saturating_sub(now)
    }

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
