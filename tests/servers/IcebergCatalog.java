import com.fasterxml.jackson.annotation.JsonAutoDetect.Visibility;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.Endpoint;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.RESTUtil;
import org.apache.iceberg.rest.requests.CommitTransactionRequest;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.rest.responses.ConfigResponse;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.rest.responses.OAuthTokenResponse;

/**
 * Iceberg's own catalog and handlers of the REST protocol, behind HTTP with a bearer token.
 *
 * <p>One thread answers all requests, one after the other; so a look at all tables of a namespace
 * sees them at one moment. A client may ask for a kind of catalog by its property `warehouse`; it
 * gets it under a prefix of this name: "single" has no request that changes several tables, "lost"
 * only says that it has it. A client may get a token for its credentials; its id says for how many
 * requests the token is good: "uses-5". Then it is refused with 401 or 419, both of which servers do.
 *
 * <p>With a file of its state a server that was killed goes on where it was: each change is in the
 * file, all its tables at once, before it is answered.
 */
public class IcebergCatalog {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final InMemoryCatalog CATALOG = new InMemoryCatalog();
  private static final Set<String> KINDS = Set.of("single", "lost");
  /** Requests that are left for each token that was given for credentials. */
  private static final Map<String, Integer> TOKENS = new HashMap<>();
  private static final List<Endpoint> ENDPOINTS =
      List.of(
          Endpoint.V1_CREATE_NAMESPACE,
          Endpoint.V1_LOAD_NAMESPACE,
          Endpoint.V1_CREATE_TABLE,
          Endpoint.V1_LOAD_TABLE,
          Endpoint.V1_UPDATE_TABLE,
          Endpoint.V1_DELETE_TABLE);

  private static Path state;

  /** Arguments: port, token, warehouse, and a file of the state if it is to be kept. */
  public static void main(String[] arguments) throws Exception {
    JSON.setVisibility(PropertyAccessor.FIELD, Visibility.ANY);
    JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    JSON.setPropertyNamingStrategy(new PropertyNamingStrategies.KebabCaseStrategy());
    RESTSerializers.registerAll(JSON);
    CATALOG.initialize("lake", Map.of("warehouse", arguments[2]));
    if (arguments.length > 3) {
      state = Path.of(arguments[3]);
      if (Files.exists(state)) restore();
    }
    var place = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
    var server = HttpServer.create(place, 0);
    server.createContext("/", exchange -> answer(exchange, "Bearer " + arguments[1]));
    server.start();
  }

  private static void answer(HttpExchange exchange, String authorization) {
    int status = 200;
    Object answer;
    try {
      boolean wantsToken = exchange.getRequestURI().getPath().equals("/v1/oauth/tokens");
      String given = exchange.getRequestHeaders().getFirst("Authorization");
      if (!wantsToken && !authorization.equals(given) && !isGood(given)) {
        throw new NotAuthorizedException("no valid token");
      }
      answer = wantsToken ? token(exchange, authorization) : handle(exchange);
      boolean isLook = Set.of("GET", "HEAD").contains(exchange.getRequestMethod());
      if (state != null && !isLook) save();
    } catch (Exception error) {
      status = statusOf(error);
      answer =
          ErrorResponse.builder()
              .responseCode(status)
              .withType(error.getClass().getSimpleName())
              .withMessage(String.valueOf(error.getMessage()))
              .build();
    }
    try (exchange) {
      boolean isEmpty = answer == null || exchange.getRequestMethod().equals("HEAD");
      byte[] body = isEmpty ? new byte[0] : JSON.writeValueAsBytes(answer);
      exchange.getResponseHeaders().set("Content-Type", "application/json");
      exchange.sendResponseHeaders(isEmpty && status == 200 ? 204 : status, isEmpty ? -1 : body.length);
      exchange.getResponseBody().write(body);
    } catch (Exception error) {
      error.printStackTrace();
    }
  }

  private static void save() throws IOException {
    var spaces = new TreeMap<String, Map<String, String>>();
    for (Namespace space : CATALOG.listNamespaces()) {
      var tables = new TreeMap<String, String>();
      for (TableIdentifier table : CATALOG.listTables(space)) {
        var operations = ((BaseTable) CATALOG.loadTable(table)).operations();
        tables.put(table.name(), TableMetadataParser.toJson(operations.current()));
      }
      spaces.put(space.toString(), tables);
    }
    Path next = Path.of(state + ".next");
    Files.writeString(next, JSON.writeValueAsString(spaces));
    Files.move(next, state, StandardCopyOption.ATOMIC_MOVE);
  }

  private static void restore() throws IOException {
    var spaces =
        JSON.readValue(
            Files.readString(state), new TypeReference<TreeMap<String, TreeMap<String, String>>>() {});
    var files = new InMemoryFileIO();
    spaces.forEach(
        (space, tables) -> {
          CATALOG.createNamespace(Namespace.of(space.split("\\.")));
          tables.forEach(
              (name, metadata) -> {
                String place = "memory/" + UUID.randomUUID() + ".metadata.json";
                files.addFile(place, metadata.getBytes(StandardCharsets.UTF_8));
                CATALOG.registerTable(TableIdentifier.of(Namespace.of(space.split("\\.")), name), place);
              });
        });
  }

  private static class ExpiredException extends Exception {}

  private static boolean isGood(String authorization) throws ExpiredException {
    Integer left = TOKENS.computeIfPresent(authorization, (token, uses) -> uses - 1);
    if (left != null && left < 0 && TOKENS.size() % 2 == 0) throw new ExpiredException();
    return left != null && left >= 0;
  }

  /** The client's secret is the token that is always good. */
  private static OAuthTokenResponse token(HttpExchange exchange, String authorization) throws Exception {
    var body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
    var form = RESTUtil.decodeFormData(body);
    if (!authorization.equals("Bearer " + form.get("client_secret"))) {
      throw new NotAuthorizedException("unknown client");
    }
    String token = UUID.randomUUID().toString();
    TOKENS.put("Bearer " + token, Integer.parseInt(form.get("client_id").replace("uses-", "")));
    return OAuthTokenResponse.builder()
        .withToken(token)
        .withTokenType("bearer")
        .withIssuedTokenType("urn:ietf:params:oauth:token-type:access_token")
        .build();
  }

  private static int statusOf(Exception error) {
    if (error instanceof NotAuthorizedException) return 401;
    if (error instanceof ExpiredException) return 419;
    if (error instanceof NoSuchTableException || error instanceof NoSuchNamespaceException) return 404;
    if (error instanceof NoSuchMethodException) return 404;
    if (error instanceof AlreadyExistsException || error instanceof CommitFailedException) return 409;
    if (error instanceof IllegalArgumentException) return 400;
    error.printStackTrace();
    return 500;
  }

  private static ConfigResponse config(String query) {
    String kind = query == null ? "" : query.replaceFirst("warehouse=", "");
    var answer = ConfigResponse.builder().withEndpoints(ENDPOINTS);
    if (KINDS.contains(kind)) answer.withOverride("prefix", kind);
    if (!kind.equals("single")) answer.withEndpoints(List.of(Endpoint.V1_COMMIT_TRANSACTION));
    return answer.build();
  }

  /** Rows of each table. */
  private static Map<String, Long> look(Namespace namespace) {
    var found = new TreeMap<String, Long>();
    for (TableIdentifier table : CATALOG.listTables(namespace)) {
      Snapshot head = CATALOG.loadTable(table).currentSnapshot();
      long rows = head == null ? 0 : Long.parseLong(head.summary().get("total-records"));
      found.put(table.name(), rows);
    }
    return found;
  }

  /** The newest marker of each table. */
  private static Map<String, Long> marks(Namespace namespace) {
    var found = new TreeMap<String, Long>();
    for (TableIdentifier table : CATALOG.listTables(namespace)) {
      long newest = 0;
      for (var property : CATALOG.loadTable(table).properties().entrySet()) {
        boolean isOurs = property.getKey().startsWith("dagster-jet/");
        boolean isMark = isOurs && property.getValue().matches("\\d{10,19}");
        if (isMark) newest = Math.max(newest, Long.parseLong(property.getValue()));
      }
      found.put(table.name(), newest);
    }
    return found;
  }

  /** Changes all tables or none: nothing fails after the first is changed. */
  private static void commit(CommitTransactionRequest request) {
    var found = new ArrayList<TableOperations>();
    var changed = new ArrayList<TableMetadata>();
    for (UpdateTableRequest change : request.tableChanges()) {
      var table = ((BaseTable) CATALOG.loadTable(change.identifier())).operations();
      change.requirements().forEach(one -> one.validate(table.current()));
      var builder = TableMetadata.buildFrom(table.current());
      change.updates().forEach(one -> one.applyTo(builder));
      found.add(table);
      changed.add(builder.build());
    }
    for (int i = 0; i < found.size(); i++) found.get(i).commit(found.get(i).current(), changed.get(i));
  }

  private static String[] without(String[] path, int place) {
    var left = new ArrayList<>(List.of(path));
    left.remove(place);
    return left.toArray(new String[0]);
  }

  private static Object handle(HttpExchange exchange) throws Exception {
    String[] path = exchange.getRequestURI().getRawPath().substring(1).split("/");
    String method = exchange.getRequestMethod();
    if (path[1].equals("config")) return config(exchange.getRequestURI().getQuery());
    if (path[1].equals("looks")) return look(Namespace.of(path[2]));
    if (path[1].equals("marks")) return marks(Namespace.of(path[2]));
    boolean changesOne = KINDS.contains(path[1]);
    if (changesOne) path = without(path, 1);
    if (path[1].equals("transactions")) {
      if (changesOne) throw new NoSuchMethodException("no such route");
      commit(JSON.readValue(exchange.getRequestBody(), CommitTransactionRequest.class));
      return null;
    }
    if (path.length == 2) {
      var request = JSON.readValue(exchange.getRequestBody(), CreateNamespaceRequest.class);
      return CatalogHandlers.createNamespace(CATALOG, request);
    }
    String decoded = URLDecoder.decode(path[2], StandardCharsets.UTF_8);
    Namespace namespace = Namespace.of(decoded.split("\u001f"));
    if (path.length == 3) return CatalogHandlers.loadNamespace(CATALOG, namespace);
    if (path.length == 4) {
      var request = JSON.readValue(exchange.getRequestBody(), CreateTableRequest.class);
      return request.stageCreate()
          ? CatalogHandlers.stageTableCreate(CATALOG, namespace, request)
          : CatalogHandlers.createTable(CATALOG, namespace, request);
    }
    TableIdentifier table = TableIdentifier.of(namespace, path[4]);
    switch (method) {
      case "GET":
      case "HEAD":
        return CatalogHandlers.loadTable(CATALOG, table);
      case "DELETE":
        CatalogHandlers.dropTable(CATALOG, table);
        return null;
      default:
        var request = JSON.readValue(exchange.getRequestBody(), UpdateTableRequest.class);
        return CatalogHandlers.updateTable(CATALOG, table, request);
    }
  }
}
