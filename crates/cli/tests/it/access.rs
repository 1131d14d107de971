//! Permissions of an installed server, checked at a real API server: exactly those that the page documents.

use std::collections::BTreeSet;

use bowline_api::access::{self, Profile};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, ResourceRule, SelfSubjectRulesReview,
    SelfSubjectRulesReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::install::Installed;

/// User name of the server.
const ACCOUNT: &str = "system:serviceaccount:velero:bowline";
const GROUPS: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:velero", "system:authenticated"];
/// Its own namespace, and one of an application.
const SERVER_NAMESPACE: &str = "velero";
const APP_NAMESPACE: &str = "shop";

const READ: [&str; 3] = ["get", "list", "watch"];
const CHANGE: [&str; 3] = ["create", "update", "patch"];
const DELETE: [&str; 2] = ["delete", "deletecollection"];
/// Verbs that mean something for a few resources only: group, resource, verbs.
const SPECIAL: [(&str, &str, &[&str]); 10] = [
    ("rbac.authorization.k8s.io", "roles", &["bind", "escalate"]),
    ("rbac.authorization.k8s.io", "clusterroles", &["bind", "escalate"]),
    ("", "users", &["impersonate"]),
    ("", "groups", &["impersonate"]),
    ("", "serviceaccounts", &["impersonate"]),
    ("authentication.k8s.io", "userextras", &["impersonate"]),
    ("authentication.k8s.io", "uids", &["impersonate"]),
    ("certificates.k8s.io", "signers", &["approve", "sign", "attest"]),
    ("", "nodes", &["proxy"]),
    ("example.io", "things", &["*", "own"]),
];
const SNAPSHOTS: [(&str, &str); 6] = [
    ("snapshot.storage.k8s.io", "volumesnapshots"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents/status"),
    ("groupsnapshot.storage.k8s.io", "volumegroupsnapshots"),
    ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents"),
    ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents/status"),
];

/// A question to the API server: may a user do this?
#[derive(Clone, Debug)]
struct Question {
    verb: &'static str,
    group: String,
    /// Resource, with its subresource after a slash.
    resource: String,
    namespace: &'static str,
}

impl Question {
    fn is_one_of(&self, verbs: &[&str]) -> bool {
        verbs.contains(&self.verb)
    }

    fn is_of(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }

    /// Permissions of every account of a cluster: questions about itself.
    fn is_allowed_to_everyone(&self) -> bool {
        self.verb == "create"
            && [
                ("authorization.k8s.io", "selfsubjectaccessreviews"),
                ("authorization.k8s.io", "selfsubjectrulesreviews"),
                ("authentication.k8s.io", "selfsubjectreviews"),
            ]
            .iter()
            .any(|(group, resource)| self.is_of(group, resource))
    }
}

/// A row of the table on the page: its first words, its subject, and who has the permission.
struct Row {
    begins: &'static str,
    is_about: fn(&Question) -> bool,
    backup_only: bool,
    full: bool,
}

const fn row(
    begins: &'static str,
    backup_only: bool,
    full: bool,
    is_about: fn(&Question) -> bool,
) -> Row {
    Row { begins, is_about, backup_only, full }
}

const TABLE: [Row; 7] = [
    row("read every object", true, true, |question| question.is_one_of(&READ)),
    row("run hooks in pods", true, true, |question| {
        question.verb == "create" && question.is_of("", "pods/exec")
    }),
    row("create and delete snapshots of CSI volumes", true, true, |question| {
        let is_snapshot = SNAPSHOTS.iter().any(|(group, resource)| question.is_of(group, resource));
        is_snapshot && (question.is_one_of(&CHANGE) || question.verb == "delete")
    }),
    row("write its own namespace", true, true, |question| {
        let is_written = question.is_one_of(&CHANGE) || question.verb == "delete";
        let is_event = question.is_of("", "events") || question.is_of("events.k8s.io", "events");
        question.namespace == SERVER_NAMESPACE
            && (((question.group == "velero.io" || question.is_of("", "configmaps")) && is_written)
                || (question.is_of("coordination.k8s.io", "leases") && question.is_one_of(&CHANGE))
                || (is_event && question.is_one_of(&["create", "patch"])))
    }),
    row("create and change any object", false, true, |question| question.is_one_of(&CHANGE)),
    row("grant permissions that it does not have", false, true, |question| {
        question.is_one_of(&["bind", "escalate"])
    }),
    row("delete objects of applications", false, false, |question| question.is_one_of(&DELETE)),
];

/// True if the page grants this to a server.
fn is_documented(question: &Question, profile: Profile) -> bool {
    let is_granted = |row: &Row| match profile {
        Profile::BackupOnly => row.backup_only,
        Profile::Full => row.full,
    };
    question.is_allowed_to_everyone()
        || TABLE.iter().any(|row| is_granted(row) && (row.is_about)(question))
}

#[test]
fn documented_table_has_the_tested_rows() {
    let page = include_str!("../../../../docs/install.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| | backup-only")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), TABLE.len(), "{rows:?}");
    let word = |may: bool| if may { "yes" } else { "no" };
    for (documented, row) in rows.iter().zip(&TABLE) {
        assert!(documented[0].starts_with(row.begins), "{documented:?} is not {:?}", row.begins);
        assert_eq!(documented[1..], [word(row.backup_only), word(row.full)], "{documented:?}");
    }
}

/// Every verb for every resource of the cluster, and for an unknown resource.
async fn questions(client: &Client) -> Vec<Question> {
    let mut resources = vec![("example.io".to_owned(), "things".to_owned(), true)];
    let mut add = |group: &str, list: Vec<(String, bool)>| {
        resources.extend(list.into_iter().map(|(name, below)| (group.to_owned(), name, below)));
    };
    let core = client.list_core_api_resources("v1").await.unwrap().resources;
    add("", core.into_iter().map(|one| (one.name, one.namespaced)).collect());
    for group in client.list_api_groups().await.unwrap().groups {
        for version in &group.versions {
            let list = client.list_api_group_resources(&version.group_version).await.unwrap();
            let list = list.resources.into_iter().map(|one| (one.name, one.namespaced));
            add(&group.name, list.collect());
        }
    }
    // In a cluster without CSI, these kinds do not exist yet.
    for (group, resource) in SNAPSHOTS {
        add(group, vec![(resource.to_owned(), true)]);
    }
    let mut questions = Vec::new();
    for (group, resource, is_namespaced) in resources {
        let namespaces: &[&'static str] =
            if is_namespaced { &[SERVER_NAMESPACE, APP_NAMESPACE] } else { &[""] };
        for verb in READ.into_iter().chain(CHANGE).chain(DELETE) {
            questions.extend(namespaces.iter().map(|&namespace| Question {
                verb,
                group: group.clone(),
                resource: resource.clone(),
                namespace,
            }));
        }
    }
    for (group, resource, verbs) in SPECIAL {
        for &verb in verbs {
            questions.extend([SERVER_NAMESPACE, APP_NAMESPACE, ""].map(|namespace| Question {
                verb,
                group: group.to_owned(),
                resource: resource.to_owned(),
                namespace,
            }));
        }
    }
    questions
}

async fn is_allowed(client: &Client, spec: SubjectAccessReviewSpec) -> bool {
    let spec = SubjectAccessReviewSpec {
        user: Some(ACCOUNT.to_owned()),
        groups: Some(GROUPS.map(str::to_owned).to_vec()),
        ..spec
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

async fn may_access(client: &Client, question: &Question) -> bool {
    let (resource, below) = question.resource.split_once('/').unwrap_or((&question.resource, ""));
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let attributes = ResourceAttributes {
        verb: text(question.verb),
        group: text(&question.group),
        resource: text(resource),
        subresource: text(below),
        namespace: text(question.namespace),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    is_allowed(client, spec).await
}

/// True if the user may access a non-resource URL.
async fn may_reach(client: &Client, verb: &str, path: &str) -> bool {
    let attributes =
        NonResourceAttributes { verb: Some(verb.to_owned()), path: Some(path.to_owned()) };
    let spec = SubjectAccessReviewSpec {
        non_resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    is_allowed(client, spec).await
}

/// A rule in one spelling.
type NormalizedRule = (BTreeSet<String>, BTreeSet<String>, BTreeSet<String>, Option<Vec<String>>);

fn normalized(
    groups: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    verbs: Vec<String>,
    names: Option<Vec<String>>,
) -> NormalizedRule {
    let set = |texts: Option<Vec<String>>| texts.unwrap_or_default().into_iter().collect();
    let names = names.filter(|names| !names.is_empty());
    (set(groups), set(resources), verbs.into_iter().collect(), names)
}

/// Permissions of the server in a namespace, as the API server reports them.
async fn rules(client: &Client, namespace: &str) -> BTreeSet<NormalizedRule> {
    let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) };
    let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
    let api: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    let spell = |rule: ResourceRule| {
        normalized(rule.api_groups, rule.resources, rule.verbs, rule.resource_names)
    };
    let is_everybodys = |(_, resources, verbs, _): &NormalizedRule| {
        let of_oneself = |name: &String| name.starts_with("selfsubject");
        resources.iter().all(of_oneself) && verbs.iter().all(|verb| verb == "create")
    };
    let rules = answer.resource_rules.into_iter().map(spell);
    rules.filter(|rule| !is_everybodys(rule)).collect()
}

/// The server's own user, as the cluster knows it.
async fn as_server(installed: &Installed) -> Client {
    let file = Kubeconfig::read_from(installed.plane.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options).await.unwrap();
    config.auth_info.impersonate = Some(ACCOUNT.to_owned());
    config.auth_info.impersonate_groups = Some(GROUPS.map(str::to_owned).to_vec());
    Client::try_from(config).unwrap()
}

#[test]
fn each_verb_on_each_resource_is_allowed_exactly_as_documented() {
    let installed = Installed::start();
    let (runtime, client) = (&installed.runtime, &installed.client);
    for profile in Profile::ALL {
        installed.install(profile.as_str());
        runtime.block_on(async {
            let questions = questions(client).await;
            assert!(questions.len() > 1000, "{}", questions.len());
            for question in &questions {
                let expected = is_documented(question, profile);
                assert_eq!(may_access(client, question).await, expected, "{profile}: {question:?}");
            }
            for (verb, path) in [("get", "/metrics"), ("get", "/logs/"), ("get", "/debug/pprof/")] {
                assert!(!may_reach(client, verb, path).await, "{profile}: {verb} {path}");
            }
            assert!(!may_reach(client, "*", "*").await, "{profile}");
            let server = as_server(&installed).await;
            for namespace in [SERVER_NAMESPACE, APP_NAMESPACE] {
                let own =
                    if namespace == SERVER_NAMESPACE { access::own_rules() } else { Vec::new() };
                let spell = |rule: PolicyRule| {
                    normalized(rule.api_groups, rule.resources, rule.verbs, rule.resource_names)
                };
                let granted = access::cluster_rules(profile).into_iter().chain(own).map(spell);
                let found = rules(&server, namespace).await;
                assert_eq!(found, granted.collect(), "{profile} in {namespace}");
            }
        });
    }
}
