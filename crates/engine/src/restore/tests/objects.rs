use super::*;

fn service(managed: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web", "managedFields": managed},
        "spec": {"type": "NodePort", "ports": [
            {"port": 80, "protocol": "TCP", "nodePort": 31234},
            {"port": 81, "protocol": "TCP", "nodePort": 31235},
        ]},
    })
}

fn owner(operation: &str) -> Value {
    json!([{
        "manager": "helm", "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:ports": {r#"k:{"port":80,"protocol":"TCP"}"#: {"f:nodePort": {}}}}},
    }])
}

#[tokio::test]
async fn owned_node_ports_are_kept() {
    let fixture = RestoreFixture::new(&[entry("services", &service(&owner("Update")))]);
    fixture.run_well().await;
    let restored = fixture.object("services", "shop", "web").unwrap();
    assert_eq!(restored["spec"]["ports"][0]["nodePort"], 31234);
    assert_eq!(restored["spec"]["ports"][1]["nodePort"], Value::Null, "nobody chose it");
}

#[tokio::test]
async fn plugin_actions_see_managed_fields() {
    let mut fixture = RestoreFixture::new(&[entry("services", &service(&owner("Update")))]);
    fixture.actions = vec![action(&["services"], |object, _| {
        let manager = object["metadata"]["managedFields"][0]["manager"].clone();
        object["metadata"]["labels"] = json!({ "manager": manager });
    })];
    fixture.run_well().await;
    let restored = fixture.object("services", "shop", "web").unwrap();
    assert_eq!(restored["metadata"]["labels"]["manager"], "helm");
}

#[tokio::test]
async fn managed_fields_are_written_back_for_applied_objects() {
    for (operation, expected) in [("Apply", owner("Apply")), ("Update", Value::Null)] {
        let fixture = RestoreFixture::new(&[entry("services", &service(&owner(operation)))]);
        fixture.run_well().await;
        let restored = fixture.object("services", "shop", "web").unwrap();
        assert_eq!(restored["metadata"]["managedFields"], expected, "{operation}");
    }
    // Server-side apply of the status alone is no reason.
    let mut status = owner("Apply");
    status[0]["subresource"] = "status".into();
    let fixture = RestoreFixture::new(&[entry("services", &service(&status))]);
    fixture.run_well().await;
    let restored = fixture.object("services", "shop", "web").unwrap();
    assert_eq!(restored["metadata"]["managedFields"], Value::Null);
}

#[tokio::test]
async fn existing_object_is_found_whatever_the_refusal() {
    for (code, reason) in
        [(403, "Forbidden"), (422, "Invalid"), (500, "InternalError"), (400, "BadRequest")]
    {
        // The first write creates the object.
        let mut fixture = RestoreFixture::of(
            Fake::usual()
                .with(
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
                )
                .with(map("shop", "a")),
            &maps("shop", &["a"]),
        );
        fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
        let restored = fixture.run_well().await;
        assert_eq!(restored.resources.0["v1/ConfigMap"], ["shop/a(skipped)"], "{code}");

        let mut other = map("shop", "a");
        other["data"]["key"] = "another".into();
        fixture.cluster.put(other);
        fixture.spec = json!({"existingResourcePolicy": "update"});
        fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
        fixture.run_well().await;
        let updated = fixture.object("configmaps", "shop", "a").unwrap();
        assert_eq!(updated["data"]["key"], "value", "{code}");

        // An object that does not exist is refused with the reason.
        let fixture = RestoreFixture::new(&maps("shop", &["b"]));
        fixture.cluster.fail_some_writes("configmaps", 1, move || refused(code, reason));
        let (errors, _) = messages(&fixture.run().await);
        assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
    }
}

#[tokio::test]
async fn completed_pods_and_jobs_are_not_in_the_resource_list() {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "done"},
        "spec": {"containers": [{"name": "main", "image": "x"}]}, "status": {"phase": "Succeeded"},
    });
    let done = entry("pods", &pod);
    pod["metadata"]["name"] = "runs".into();
    pod["status"]["phase"] = "Running".into();
    let fixture = RestoreFixture::new(&[done, entry("pods", &pod)]);
    let restored = fixture.run_well().await;
    assert_eq!(restored.resources.0["v1/Pod"], ["shop/runs(created)"]);
}

#[tokio::test]
async fn status_is_restored_only_for_created_objects() {
    let widget = |status: Value| {
        json!({
            "apiVersion": "example.io/v1", "kind": "Widget",
            "metadata": {"namespace": "shop", "name": "w"}, "spec": {"a": 1}, "status": status,
        })
    };
    let entries = [entry("widgets.example.io", &widget(json!({"ready": true})))];
    let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
    fixture.spec = json!({"restoreStatus": {"includedResources": ["widgets.example.io"]}});
    fixture.run_well().await;
    let restored = fixture.object("widgets.example.io", "shop", "w").unwrap();
    assert_eq!(restored["status"], json!({"ready": true}));
    // An object that existed before keeps its own status, even if it is updated.
    let mut existing = widget(json!({"ready": false}));
    existing["spec"]["a"] = 2.into();
    fixture.cluster.put(existing);
    fixture.spec["existingResourcePolicy"] = "update".into();
    fixture.run_well().await;
    let restored = fixture.object("widgets.example.io", "shop", "w").unwrap();
    assert_eq!(restored["spec"], json!({"a": 1}));
    assert_eq!(restored["status"], json!({"ready": false}));
}

#[tokio::test(start_paused = true)]
async fn only_created_crds_are_waited_for() {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.io"}, "spec": {"group": "example.io"},
    });
    let kind = "customresourcedefinitions.apiextensions.k8s.io";
    let entries = [entry(kind, &crd)];
    let fixture = RestoreFixture::of(Fake::usual().with(crd.clone()), &entries);
    let started_at = tokio::time::Instant::now();
    fixture.run_well().await;
    assert!(started_at.elapsed() < Duration::from_secs(1), "{:?}", started_at.elapsed());
    // The definition never becomes ready here.
    let (errors, _) = messages(&RestoreFixture::new(&entries).run().await);
    assert!(errors.len() == 1 && errors[0].contains("is not served after 60 s"), "{errors:?}");
}

fn convert(object: &mut Value) {
    object["apiVersion"] = "apps/v1".into();
    object["kind"] = "Deployment".into();
}

#[tokio::test]
async fn an_action_or_a_modifier_may_convert_a_kind_that_the_cluster_does_not_serve() {
    let config = json!({
        "apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig",
        "metadata": {"namespace": "shop", "name": "web"}, "spec": {"replicas": 2},
    });
    let entries = [entry("deploymentconfigs.apps.openshift.io", &config)];
    let mut fixture = RestoreFixture::new(&entries);
    let kinds = &["deploymentconfigs.apps.openshift.io"];
    fixture.actions = vec![action(kinds, |object, _| convert(object))];
    fixture.run_well().await;
    let restored = fixture.object("deployments.apps", "shop", "web").unwrap();
    assert_eq!(restored["spec"]["replicas"], 2);

    let mut fixture = RestoreFixture::new(&entries);
    fixture.modifiers = Some(
        "version: v1\nresourceModifierRules:\n- conditions:\n    groupResource: \
         deploymentconfigs.apps.openshift.io\n  mergePatches:\n  - patchData: |\n      apiVersion: \
         apps/v1\n      kind: Deployment\n"
            .to_owned(),
    );
    fixture.run_well().await;
    assert!(fixture.object("deployments.apps", "shop", "web").is_some());

    // A kind that no action converts is reported as before, and creates no namespace.
    let fixture = RestoreFixture::new(&entries);
    let (errors, _) = messages(&fixture.run().await);
    let words = "the cluster does not serve deploymentconfigs.apps.openshift.io";
    assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");
    assert_eq!(fixture.cluster.creations(), []);
    let mut fixture = RestoreFixture::new(&entries);
    fixture.actions = vec![action(&["*"], |_, _| {})];
    let (errors, _) = messages(&fixture.run().await);
    assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");
}

#[tokio::test]
async fn a_version_that_the_cluster_does_not_serve_may_be_converted() {
    let widget = json!({
        "apiVersion": "example.io/v1beta1", "kind": "Widget",
        "metadata": {"namespace": "shop", "name": "w"}, "spec": {"a": 1},
    });
    let plain = entry("widgets.example.io", &widget);
    let preferred = plain.0.replace("io/", "io/v1beta1-preferredversion/");
    let entries = [plain.clone(), (preferred, plain.1)];
    let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
    fixture.actions = vec![action(&["widgets.example.io"], |object, _| {
        object["apiVersion"] = "example.io/v1".into();
    })];
    fixture.run_well().await;
    assert!(fixture.object("widgets.example.io", "shop", "w").is_some());
}

#[tokio::test]
async fn request_objects_are_not_restored() {
    let kinds = [
        ("DeleteBackupRequest", "deletebackuprequests"),
        ("DownloadRequest", "downloadrequests"),
        ("ServerStatusRequest", "serverstatusrequests"),
        ("PodVolumeBackup", "podvolumebackups"),
        ("PodVolumeRestore", "podvolumerestores"),
        ("DataUpload", "datauploads"),
        ("DataDownload", "datadownloads"),
    ];
    let resources = kinds.map(|(kind, plural)| Resource {
        id: GroupResource::new("velero.io", plural),
        kind: kind.into(),
        ..widgets(&["v1"]).next().unwrap()
    });
    let usual = crate::cluster::fake::usual_resources();
    let entries = kinds.map(|(kind, plural)| {
        let metadata = json!({"namespace": "velero", "name": "x"});
        let object = json!({"apiVersion": "velero.io/v1", "kind": kind, "metadata": metadata});
        entry(&format!("{plural}.velero.io"), &object)
    });
    let entries: Vec<Entry> = entries.into_iter().chain(maps("velero", &["a"])).collect();
    let fixture = RestoreFixture::of(Fake::new(usual.into_iter().chain(resources)), &entries);
    fixture.run_well().await;
    let created: BTreeSet<String> =
        fixture.cluster.creations().into_iter().map(|id| id.resource).collect();
    assert_eq!(created, BTreeSet::from(["configmaps".to_owned(), "namespaces".to_owned()]));
}

/// A cluster that serves widgets once their definition has been created.
struct GrowingCluster(Arc<Fake>);

#[async_trait]
impl Delegate for GrowingCluster {
    fn inner(&self) -> &dyn Cluster {
        &*self.0
    }

    async fn discover(&self) -> cluster::Result<Discovery> {
        let mut discovery = self.0.discover().await?;
        let is_defined = self.0.creations().iter().any(|id| id.name == "widgets.example.io");
        discovery.resources.retain(|one| is_defined || one.id.group != "example.io");
        Ok(discovery)
    }

    async fn create(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> cluster::Result<Object> {
        let mut object: Value = item.parse().unwrap();
        if of.kind == "CustomResourceDefinition" {
            let holds = |kind: &str| json!({"type": kind, "status": "True"});
            object["status"]["conditions"] = json!([holds("Established"), holds("NamesAccepted")]);
        }
        self.0.create(of, namespace, &Item::from_object(&object).unwrap()).await
    }
}

#[tokio::test]
async fn kind_names_are_resolved_again_after_crds_are_restored() {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.io"}, "spec": {"group": "example.io"},
    });
    let widget = json!({
        "apiVersion": "example.io/v1", "kind": "Widget",
        "metadata": {"namespace": "shop", "name": "w"}, "spec": {},
    });
    let mut entries = maps("shop", &["a"]);
    entries.push(entry("customresourcedefinitions.apiextensions.k8s.io", &crd));
    entries.push(entry("widgets.example.io", &widget));
    // The singular in the priorities, and the short name in the include list.
    let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
    fixture.priorities = "widget.example.io,configmaps".parse().unwrap();
    fixture.spec = json!({"includedResources": ["crd", "wd", "cm"]});
    let growing = Arc::new(GrowingCluster(Arc::clone(&fixture.cluster)));
    let restored = fixture.run_in(growing).await;
    let results = restored.report.results();
    assert_eq!((results.errors.count(), results.warnings.count()), (0, 0), "{results:?}");
    let order: Vec<String> =
        fixture.cluster.creations().into_iter().map(|id| id.resource).collect();
    assert_eq!(order, ["customresourcedefinitions", "namespaces", "widgets", "configmaps"]);
    assert_eq!(restored.total, 3);
}
