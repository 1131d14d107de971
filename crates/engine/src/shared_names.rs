//! Names that occur again and again, such as those of namespaces: each is in memory once.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Names in use so far.
#[derive(Debug, Default)]
pub(crate) struct SharedNames(BTreeSet<Arc<str>>);

impl SharedNames {
    /// The shared copy of a name.
    pub(crate) fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.0.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_name_is_in_memory_once() {
        let mut names = SharedNames::default();
        let [one, other, same] = ["a", "b", "a"].map(|name| names.share(name));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!((&*one, &*other, names.0.len()), ("a", "b", 2));
    }
}
