//! The built-in BackupItemActions and ItemBlockActions on arbitrary JSON.

use std::sync::Arc;

use bowline_api::Backup;
use bowline_cluster::{Cluster, Fake};
use bowline_engine::action::built_in;
use bowline_plugin::{Encoded, Item};
use serde_json::json;

use super::block_on;

pub(super) fn run(input: &[u8]) {
    let Ok(item) = Item::from_json(input.to_vec()) else { return };
    block_on(async {
        let fake = Fake::usual()
            .with(json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "p"},
                "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            }))
            .with(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "ServiceAccount", "namespace": "a", "name": "s"}],
            }));
        let resources = Arc::new(fake.resources());
        let cluster: Arc<dyn Cluster> = Arc::new(fake);
        let actions = built_in(&cluster, &resources, Vec::new(), "group");
        let backup = Encoded::new(Backup::default());
        for action in actions.backup_item_actions {
            let Ok(output) = action.plugin.execute(&item, &backup).await else { continue };
            // Its claims, its PriorityClass, and what the cluster has.
            assert!(output.additional_items.len() <= input.len() + 4);
            assert!(output.item.json().len() <= 8 * input.len() + 1024);
        }
        for action in actions.item_block_actions {
            let Ok(related) = action.plugin.get_related_items(&item, &backup).await else {
                continue;
            };
            assert!(related.len() <= input.len() + 4);
        }
    });
}
