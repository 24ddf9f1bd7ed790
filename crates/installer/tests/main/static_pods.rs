//! Static pods as the kubelet reads them.

use std::fs;

use installer::assets::Target;

use crate::configs;

#[test]
fn our_kubelet_reads_every_static_pod() {
    for (name, config) in configs::ALL {
        let dir = tempfile::tempdir().unwrap();
        configs::write(dir.path(), &config());
        configs::create(dir.path(), Target::Manifests);
        let mut count = 0;
        for folder in ["bootstrap-manifests", "master-manifests"] {
            for entry in fs::read_dir(dir.path().join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let text = fs::read_to_string(&path).unwrap();
                let pod = kubelet::parse_static_pod(&text, "machine-1")
                    .unwrap_or_else(|error| panic!("{name}: {}: {error}", path.display()));
                assert!(pod.metadata.name.ends_with("-machine-1"), "{}", pod.metadata.name);
                assert_eq!(pod.metadata.namespace, "kube-system");
                let container = &pod.spec.containers[0];
                assert!(container.command.len() > 4, "{name}: {:?}", container.command);
                assert!(pod.spec.host_network);
                // Static pods cannot refer to the API: files of the machine only.
                assert!(!text.contains("configMap:") && !text.contains("secretName:"));
                count += 1;
            }
        }
        assert_eq!(count, 6, "{name}");
    }
}
