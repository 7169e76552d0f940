package e2e;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.GenericKubernetesResourceList;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.ListOptions;
import io.fabric8.kubernetes.api.model.ListOptionsBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.dsl.FilterWatchListDeletable;
import io.fabric8.kubernetes.client.dsl.Resource;
import io.fabric8.kubernetes.client.dsl.base.ResourceDefinitionContext;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import io.fabric8.kubernetes.client.http.BasicBuilder;
import io.fabric8.kubernetes.client.http.HttpRequest;
import io.fabric8.kubernetes.client.http.Interceptor;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import io.fabric8.kubernetes.client.utils.Serialization;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Drives an API server with fabric8's client in its default settings, unmodified, and prints what it sees as JSON lines.
 *
 * <p>Subcommands: {@code informer} prints each event of its handler, and for a line of standard input its store;
 * {@code listwatch} lists, watches from there, resumes after each end, lists again after a 410, and compares nothing;
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
    for (int at = 1; at < arguments.length; at++) {
      String[] flag = arguments[at].split("=", 2);
      boolean isFollowed = at + 1 < arguments.length && !arguments[at + 1].startsWith("--");
      flags.put(flag[0], flag.length > 1 ? flag[1] : isFollowed ? arguments[++at] : "");
    }
    Client program = new Client(flags);
    Config config = Config.fromKubeconfig(new File(program.flag("--kubeconfig")));
    KubernetesClientBuilder builder = new KubernetesClientBuilder().withConfig(config);
    String shard = flags.get("--shard-selector");
    if (shard != null) {
      builder.withHttpClientBuilderConsumer(http -> http.addOrReplaceInterceptor("shard", new Sharded(shard)));
    }
    try (KubernetesClient client = builder.build()) {
      switch (arguments[0]) {
        case "informer" -> program.informer(client);
        case "listwatch" -> program.listAndWatch(client);
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

  private void listAndWatch(KubernetesClient client) throws Exception {
    String[] parts = flag("--resource").split("/");
    String plural = parts[parts.length - 1];
    var context =
        new ResourceDefinitionContext.Builder()
            .withGroup(parts.length == 3 ? parts[0] : "")
            .withVersion(parts[parts.length - 2])
            .withKind(plural.equals("configmaps") ? "ConfigMap" : "Widget")
            .withPlural(plural)
            .withNamespaced(true)
            .build();
    var all = client.genericKubernetesResources(context);
    String namespace = flags.get("--namespace");
    var where = namespace == null ? all.inAnyNamespace() : all.inNamespace(namespace);
    Loop loop = new Loop(where, flags);
    Thread following = new Thread(loop);
    following.setDaemon(true);
    following.start();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    while (lines.readLine() != null) {
      print("store", Map.of("objects", loop.objects()));
    }
    System.exit(0);
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

  private static Map<String, Object> shown(HasMetadata object) {
    Map<String, Object> shown = new LinkedHashMap<>();
    shown.put("name", object.getMetadata().getName());
    shown.put("rv", object.getMetadata().getResourceVersion());
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

  /** A client that lists and watches, and compares no lists. */
  private static final class Loop implements Runnable {
    private static final ObjectMapper ORDERED =
        new ObjectMapper().configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true);
    private static final int GONE = 410;
    /** Milliseconds until a request that failed is sent again. */
    private static final int AGAIN = 200;

    private final FilterWatchListDeletable<
            GenericKubernetesResource, GenericKubernetesResourceList, Resource<GenericKubernetesResource>>
        collection;
    private final Map<String, String> flags;
    private final Map<String, Map<String, Object>> store = new ConcurrentHashMap<>();
    private volatile String version;

    private Loop(
        FilterWatchListDeletable<
                GenericKubernetesResource, GenericKubernetesResourceList, Resource<GenericKubernetesResource>>
            collection,
        Map<String, String> flags) {
      this.collection = collection;
      this.flags = flags;
    }

    private List<Map<String, Object>> objects() {
      return new ArrayList<>(store.values());
    }

    @Override
    public void run() {
      try {
        while (true) {
          try {
            if (version == null) {
              list();
            }
            watch();
          } catch (KubernetesClientException error) {
            failed(error.getCode(), error);
          }
          Thread.sleep(AGAIN);
        }
      } catch (Exception error) {
        print("error", Map.of("error", String.valueOf(error)));
        System.exit(1);
      }
    }

    private void failed(int code, Exception error) {
      print("watch-error", Map.of("code", code, "error", String.valueOf(error.getMessage())));
      if (code == GONE) {
        version = null;
      }
    }

    private ListOptionsBuilder options() {
      return new ListOptionsBuilder()
          .withLabelSelector(flags.get("--selector"))
          .withFieldSelector(flags.get("--field-selector"));
    }

    private void list() throws Exception {
      var list = collection.list(options().build());
      store.clear();
      for (var item : list.getItems()) {
        store.put(item.getMetadata().getUid(), whole(item));
      }
      version = list.getMetadata().getResourceVersion();
      print("list", Map.of("rv", version, "objects", objects()));
    }

    private void watch() throws Exception {
      print("watch", Map.of("from", version));
      ListOptions from =
          options()
              .withResourceVersion(version)
              .withAllowWatchBookmarks(!flags.containsKey("--without-bookmarks"))
              .build();
      LinkedBlockingQueue<WatcherException> ends = new LinkedBlockingQueue<>();
      try (var watch = collection.watch(from, new Events(ends))) {
        WatcherException end = ends.take();
        failed(end.isHttpGone() ? GONE : 0, end);
      }
    }

    private static Map<String, Object> whole(GenericKubernetesResource item) throws Exception {
      Map<String, Object> held = ORDERED.convertValue(item, ORDERED.getTypeFactory().constructMapType(Map.class, String.class, Object.class));
      held.remove("kind");
      held.remove("apiVersion");
      byte[] sum = MessageDigest.getInstance("SHA-256").digest(ORDERED.writeValueAsBytes(held));
      Map<String, Object> shown = shown(item);
      shown.put("ns", item.getMetadata().getNamespace());
      shown.put("uid", item.getMetadata().getUid());
      shown.put("labels", item.getMetadata().getLabels());
      shown.put("data", held.containsKey("data") ? held.get("data") : held.get("spec"));
      shown.put("digest", HexFormat.of().formatHex(sum, 0, 8));
      return shown;
    }

    private final class Events implements Watcher<GenericKubernetesResource> {
      private final LinkedBlockingQueue<WatcherException> ends;

      private Events(LinkedBlockingQueue<WatcherException> ends) {
        this.ends = ends;
      }

      @Override
      public boolean reconnecting() {
        // The loop does, and tells where.
        return true;
      }

      @Override
      public void eventReceived(Action action, GenericKubernetesResource item) {
        try {
          Map<String, Object> shown = action == Action.BOOKMARK ? shown(item) : whole(item);
          if (action == Action.DELETED) {
            store.remove(item.getMetadata().getUid());
          } else if (action != Action.BOOKMARK) {
            store.put(item.getMetadata().getUid(), shown);
          }
          print("wire", Map.of("type", action.toString(), "object", shown));
          version = item.getMetadata().getResourceVersion();
        } catch (Exception error) {
          print("error", Map.of("error", String.valueOf(error)));
        }
      }

      @Override
      public void onClose(WatcherException cause) {
        ends.add(cause);
      }
    }
  }

  /** Adds the shard selector (KEP-5866) behind the package, which does not know it. */
  private record Sharded(String selector) implements Interceptor {
    @Override
    public void before(BasicBuilder builder, HttpRequest request, RequestTags tags) {
      String separator = request.uri().getRawQuery() == null ? "?" : "&";
      String encoded = URLEncoder.encode(selector, StandardCharsets.UTF_8);
      builder.uri(URI.create(request.uri() + separator + "shardSelector=" + encoded));
    }
  }
}
