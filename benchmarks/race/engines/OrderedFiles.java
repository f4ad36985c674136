package benchmarks;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.PriorityQueue;
import org.apache.flink.connector.file.src.AbstractFileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.table.FileSystemTableFactory;
import org.apache.flink.connector.file.table.FileSystemTableSource;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.types.DataType;

/** Flink's own file source, which hands out a backlog in no order, with files in order of name. */
public final class OrderedFiles implements ScanTableSource, SupportsProjectionPushDown {
    private final FileSystemTableSource files;

    private OrderedFiles(FileSystemTableSource files) {
        this.files = files;
    }

    @Override
    public ChangelogMode getChangelogMode() {
        return files.getChangelogMode();
    }

    @Override
    public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
        SourceProvider provider = (SourceProvider) files.getScanRuntimeProvider(context);
        try {
            // The builder is out of reach behind the table.
            Field assigner = AbstractFileSource.class.getDeclaredField("assignerFactory");
            assigner.setAccessible(true);
            FileSplitAssigner.Provider ordered = Ordered::new;
            assigner.set(provider.createSource(), ordered);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
        return provider;
    }

    @Override
    public boolean supportsNestedProjection() {
        return files.supportsNestedProjection();
    }

    @Override
    public void applyProjection(int[][] fields, DataType type) {
        files.applyProjection(fields, type);
    }

    @Override
    public DynamicTableSource copy() {
        return new OrderedFiles((FileSystemTableSource) files.copy());
    }

    @Override
    public String asSummaryString() {
        return "files in order of name";
    }

    /** What is waiting, the first name first. */
    private static final class Ordered implements FileSplitAssigner {
        private final PriorityQueue<FileSourceSplit> waiting =
                new PriorityQueue<>(Comparator.comparing((FileSourceSplit split) -> split.path().getPath())
                        .thenComparingLong(FileSourceSplit::offset));

        Ordered(Collection<FileSourceSplit> splits) {
            addSplits(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return Optional.ofNullable(waiting.poll());
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> splits) {
            waiting.addAll(splits);
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            List<FileSourceSplit> all = new ArrayList<>(waiting);
            return all;
        }
    }

    public static final class Factory extends FileSystemTableFactory {
        @Override
        public String factoryIdentifier() {
            return "ordered-files";
        }

        @Override
        public DynamicTableSource createDynamicTableSource(Context context) {
            return new OrderedFiles((FileSystemTableSource) super.createDynamicTableSource(context));
        }
    }
}
