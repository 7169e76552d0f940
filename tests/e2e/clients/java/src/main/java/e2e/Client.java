package e2e;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import io.fabric8.kubernetes.client.utils.Serialization;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/**
 * Drives an API server with fabric8's client in its default settings, unmodified, and prints what it sees as JSON lines.
 *
 * <p>Subcommands: {@code informer} prints each event of its handler, and for a line of standard input its store;
 * {@code elect} holds a lock until standard input ends, and gives it back; {@code upload} creates a ConfigMap of 1 MB and
 * reads it again. The end of standard input ends it.
 */
public final class Client {
  private static final int MEGABYTE = 1_000_000;

  private final Map<String, String> flags;

  private Client(Map<String, String> flags) {
    this.flags = flags;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> flags = new HashMap<>();
    for (int at = 1; at + 1 < arguments.length; at += 2) {
      flags.put(arguments[at], arguments[at + 1]);
    }
    Client program = new Client(flags);
    Config config = Config.fromKubeconfig(new File(program.flag("--kubeconfig")));
    try (KubernetesClient client = new KubernetesClientBuilder().withConfig(config).build()) {
      switch (arguments[0]) {
        case "informer" -> program.informer(client);
        case "elect" -> program.elect(client);
        case "upload" -> program.upload(client);
        default -> throw new IllegalArgumentException("no subcommand " + arguments[0]);
      }
    }
  }

  private String flag(String name) {
    String value = flags.get(name);
    if (value == null) {
      throw new IllegalArgumentException(name + " is missing");
    }
    return value;
  }

  private void informer(KubernetesClient client) throws Exception {
    var maps = client.configMaps().inNamespace(flag("--namespace"));
    String selector = flags.get("--selector");
    var selected = selector == null ? maps : maps.withLabelSelector(selector);
    try (SharedIndexInformer<ConfigMap> informer = selected.inform(new Told())) {
      print("synced", Map.of());
      BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
      while (lines.readLine() != null) {
        List<Map<String, Object>> objects = new ArrayList<>();
        informer.getStore().list().forEach(map -> objects.add(shown(map)));
        print("store", Map.of("objects", objects));
      }
    }
  }

  private void elect(KubernetesClient client) throws Exception {
    CountDownLatch stopped = new CountDownLatch(1);
    String identity = flag("--identity");
    var callbacks =
        new LeaderCallbacks(
            () -> print("acquired", Map.of("identity", identity)),
            () -> {
              print("stopped", Map.of());
              stopped.countDown();
            },
            leader -> print("leader", Map.of("identity", String.valueOf(leader))));
    var config =
        new LeaderElectionConfigBuilder()
            .withName(flag("--lock"))
            .withLock(new LeaseLock(flag("--namespace"), flag("--lock"), identity))
            .withLeaseDuration(Duration.ofSeconds(4))
            .withRenewDeadline(Duration.ofSeconds(3))
            .withRetryPeriod(Duration.ofSeconds(1))
            .withReleaseOnCancel(true)
            .withLeaderCallbacks(callbacks)
            .build();
    var election = client.leaderElector().withConfig(config).build().start();
    untilInputEnds();
    election.cancel(true);
    stopped.await();
  }

  private void upload(KubernetesClient client) {
    String name = flag("--name");
    ConfigMap map =
        new ConfigMapBuilder()
            .withNewMetadata()
            .withName(name)
            .addToLabels("team", flag("--team"))
            .endMetadata()
            .addToData("large", "x".repeat(MEGABYTE))
            .build();
    var maps = client.configMaps().inNamespace(flag("--namespace"));
    maps.resource(map).create();
    int length = maps.withName(name).get().getData().get("large").length();
    print("uploaded", Map.of("bytes", length));
  }

  private static void untilInputEnds() throws Exception {
    while (System.in.read() >= 0) {
      // Only its end counts.
    }
  }

  private static Map<String, Object> shown(ConfigMap map) {
    Map<String, Object> shown = new LinkedHashMap<>();
    shown.put("name", map.getMetadata().getName());
    shown.put("rv", map.getMetadata().getResourceVersion());
    return shown;
  }

  private static void wire(String type, ConfigMap map) {
    print("wire", Map.of("type", type, "object", shown(map)));
  }

  private static synchronized void print(String event, Map<String, ?> fields) {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("event", event);
    line.putAll(fields);
    System.out.println(Serialization.asJson(line));
  }

  /** What the informer tells. */
  private static final class Told implements ResourceEventHandler<ConfigMap> {
    @Override
    public void onAdd(ConfigMap map) {
      wire("ADDED", map);
    }

    @Override
    public void onUpdate(ConfigMap before, ConfigMap map) {
      wire("MODIFIED", map);
    }

    @Override
    public void onDelete(ConfigMap map, boolean isOfTheLastKnownState) {
      wire("DELETED", map);
    }
  }
}
