#include "cuda.h"

#include <dlfcn.h>

/* ---- the libraries --------------------------------------------------------------------------- */

enum { UNIFIED = 4, NON_BLOCKING = 1, NOT_READY = 600 }; /* CU_MEMORYTYPE_, CU_STREAM_, CUDA_ERROR_ */

/* CUDA_MEMCPY2D of cuda.h. GStreamer's own headers need cuda.h, and it is not part of them. */
typedef struct Rows {
    gsize x, y;
    gint kind;
    gconstpointer host;
    guint64 device;
    gpointer array;
    gsize pitch;
} Rows;
typedef struct Copy {
    Rows from, to;
    gsize nbytes, rows;
} Copy;
G_STATIC_ASSERT(sizeof(Copy) == 16 * 8);

#define DRIVER(F)                                                                                  \
    F(gint, init, "cuInit", (guint flags))                                                         \
    F(gint, get_error_name, "cuGetErrorName", (gint status, const gchar **name))                   \
    F(gint, retain, "cuDevicePrimaryCtxRetain", (gpointer *context, gint device))                  \
    F(gint, release, "cuDevicePrimaryCtxRelease_v2", (gint device))                                \
    F(gint, push, "cuCtxPushCurrent_v2", (gpointer context))                                       \
    F(gint, pop, "cuCtxPopCurrent_v2", (gpointer *context))                                        \
    F(gint, stream_create, "cuStreamCreate", (gpointer *stream, guint flags))                      \
    F(gint, stream_destroy, "cuStreamDestroy_v2", (gpointer stream))                               \
    F(gint, stream_query, "cuStreamQuery", (gpointer stream))                                      \
    F(gint, stream_synchronize, "cuStreamSynchronize", (gpointer stream))                          \
    F(gint, copy, "cuMemcpy2DAsync_v2", (const Copy *copy, gpointer stream))

/* Functions that are the same in all versions of the library since 1.22. */
#define LIBRARY(F)                                                                                 \
    F(gboolean, load_library, "gst_cuda_load_library", (void))                                     \
    F(void, memory_init_once, "gst_cuda_memory_init_once", (void))                                 \
    F(gboolean, is_memory, "gst_is_cuda_memory", (GstMemory *memory))                              \
    F(GstBufferPool *, new_pool, "gst_cuda_buffer_pool_new", (GstObject *context))                 \
    F(GstObject *, wrapped, "gst_cuda_context_new_wrapped", (gpointer context, gint device))       \
    F(gboolean, take_context, "gst_cuda_handle_set_context",                                       \
      (GstElement *element, GstContext *given, gint device, GstObject **context))                  \
    F(gboolean, answer, "gst_cuda_handle_context_query",                                           \
      (GstElement *element, GstQuery *query, GstObject *context))

#define MEMBER(type, name, symbol, arguments) type(*name) arguments;
static struct {
    DRIVER(MEMBER)
    LIBRARY(MEMBER)
    gboolean (*finish)(GstMemory *memory); /* since 1.24: waits for the work of others on it */
} cuda;

/* The beginning of GstCudaMemory. */
typedef struct CudaMemory {
    GstMemory memory;
    GstObject *context;
} CudaMemory;

static const gchar TYPE[] = "gst.cuda.context";
static const GstMapFlags ON_GPU = (GstMapFlags)(GST_MAP_FLAG_LAST << 1); /* GST_MAP_CUDA */

static gboolean find(void *library, const gchar *symbol, void *function) {
    void *const found = library ? dlsym(library, symbol) : NULL;
    *(void **)function = found;
    return found != NULL;
}

static gboolean load(void) {
    void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *const library = dlopen("libgstcuda-1.0.so.0", RTLD_NOW | RTLD_LOCAL); /* for ever: it has types */
    gboolean is_whole = TRUE;
#define FIND_DRIVER(type, name, symbol, arguments) is_whole &= find(driver, symbol, &cuda.name);
#define FIND_LIBRARY(type, name, symbol, arguments) is_whole &= find(library, symbol, &cuda.name);
    DRIVER(FIND_DRIVER)
    LIBRARY(FIND_LIBRARY)
    find(library, "gst_cuda_memory_sync", &cuda.finish);
    if (!is_whole || !cuda.load_library()) return FALSE;
    cuda.memory_init_once();
    return TRUE;
}

gboolean cuda_is_here(void) {
    static gsize state; /* 1: no, 2: yes */
    if (g_once_init_enter(&state)) g_once_init_leave(&state, load() ? 2 : 1);
    return state == 2;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static gint number_of(GstObject *context) {
    guint number = 0;
    g_object_get(context, "cuda-device-id", &number, NULL);
    return (gint)number;
}

gboolean cuda_has(GstBuffer *buffer, gint *number) {
    GstMemory *memory = gst_buffer_n_memory(buffer) ? gst_buffer_peek_memory(buffer, 0) : NULL;
    if (!memory || !cuda_is_here() || !cuda.is_memory(memory)) return FALSE;
    *number = number_of(((CudaMemory *)memory)->context);
    return TRUE;
}

gboolean cuda_map(GstVideoFrame *frame, const GstVideoInfo *info, GstBuffer *buffer,
                  GstMapFlags flags) {
    if (!gst_video_frame_map(frame, info, buffer, flags | ON_GPU)) return FALSE;
    if (cuda.finish) cuda.finish(gst_buffer_peek_memory(buffer, 0));
    return TRUE;
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

void gpu_init(Gpu *gpu, GstElement *element) {
    gpu->element = element;
    gpu->number = -1;
    g_mutex_init(&gpu->turn);
}

void gpu_clear(Gpu *gpu) {
    gpu_leave(gpu);
    gst_clear_object(&gpu->context);
    g_mutex_clear(&gpu->turn);
}

static gpuring_status refused(gint status, const gchar *call, gpuring_error *error) {
    const gchar *name = "?";
    if (status == 0) return GPURING_OK;
    cuda.get_error_name(status, &name);
    tell(error, GPURING_DEVICE, "%s: %s", call, name);
    return GPURING_DEVICE;
}

static void pop(void) {
    gpointer context;
    cuda.pop(&context);
}

gpuring_status gpu_use(Gpu *gpu, gint number, gpuring_error *error) {
    if (gpu->number == number) return GPURING_OK;
    gpu_leave(gpu);
    gint status = cuda.init(0);
    if (status == 0) status = cuda.retain(&gpu->primary, number);
    if (status != 0) return refused(status, "cuDevicePrimaryCtxRetain", error);
    gpu->number = number;
    status = cuda.push(gpu->primary);
    if (status == 0) {
        status = cuda.stream_create(&gpu->stream, NON_BLOCKING);
        pop();
    }
    if (status != 0) gpu_leave(gpu);
    return refused(status, "cuStreamCreate", error);
}

void gpu_leave(Gpu *gpu) {
    if (gpu->number < 0) return;
    if (gpu->stream) {
        cuda.stream_synchronize(gpu->stream);
        cuda.stream_destroy(gpu->stream);
    }
    cuda.release(gpu->number);
    gpu->stream = NULL;
    gpu->number = -1;
}

gpuring_status gpu_copy(const Gpu *gpu, gpointer to, gsize to_pitch, gconstpointer from,
                        gsize from_pitch, gsize nbytes, guint64 rows, gpuring_error *error) {
    const Copy copy = {
        .from = {.kind = UNIFIED, .device = (guint64)(gsize)from, .pitch = from_pitch},
        .to = {.kind = UNIFIED, .device = (guint64)(gsize)to, .pitch = to_pitch},
        .nbytes = nbytes,
        .rows = rows,
    };
    gint status = cuda.push(gpu->primary);
    if (status == 0) {
        status = cuda.copy(&copy, gpu->stream);
        pop();
    }
    return refused(status, "cuMemcpy2DAsync", error);
}

gpuring_status gpu_look(const Gpu *gpu, gpuring_error *error) {
    const gint status = gpu->stream ? cuda.stream_query(gpu->stream) : 0;
    return status == NOT_READY ? GPURING_TIMEOUT : refused(status, "cuStreamQuery", error);
}

/* ---- the context of GStreamer ---------------------------------------------------------------- */

void gpu_take_context(Gpu *gpu, GstContext *context) {
    if (!cuda_is_here()) return;
    g_mutex_lock(&gpu->turn);
    cuda.take_context(gpu->element, context, -1, &gpu->context);
    g_mutex_unlock(&gpu->turn);
}

/* A context of GStreamer over the primary context of CUDA. That one is never given back, because
 * the new context may outlive the element. */
static GstObject *new_context(gint number) {
    gpointer primary;
    if (cuda.init(0) != 0 || cuda.retain(&primary, number) != 0) return NULL;
    return cuda.wrapped(primary, number);
}

/* The context that the element has already, or a new one. */
static GstObject *context_of(Gpu *gpu, gint number) {
    g_mutex_lock(&gpu->turn);
    if (gpu->context && number >= 0 && number_of(gpu->context) != number)
        gst_clear_object(&gpu->context);
    if (!gpu->context) gpu->context = new_context(MAX(number, 0));
    GstObject *context = gpu->context ? gst_object_ref(gpu->context) : NULL;
    g_mutex_unlock(&gpu->turn);
    return context;
}

gboolean gpu_answer(Gpu *gpu, gint number, GstQuery *query) {
    const gchar *type;
    if (GST_QUERY_TYPE(query) != GST_QUERY_CONTEXT || !cuda_is_here()) return FALSE;
    gst_query_parse_context_type(query, &type);
    if (g_strcmp0(type, TYPE) != 0) return FALSE;
    GstObject *context = context_of(gpu, number);
    const gboolean is_answered = context && cuda.answer(gpu->element, query, context);
    gst_clear_object(&context);
    return is_answered;
}

/* Asks the neighbours and the application whether they have a context. The answer comes by way of
 * the element's set_context. */
static void ask_for_context(Gpu *gpu, GstPad *pad) {
    GstQuery *query = gst_query_new_context(TYPE);
    GstContext *context = NULL;
    if (gst_pad_peer_query(pad, query)) gst_query_parse_context(query, &context);
    if (context) gst_element_set_context(gpu->element, context);
    else
        gst_element_post_message(gpu->element,
                                 gst_message_new_need_context(GST_OBJECT(gpu->element), TYPE));
    gst_query_unref(query);
}

GstBufferPool *gpu_new_pool(Gpu *gpu, GstPad *pad, GstCaps *caps, const GstVideoInfo *info) {
    if (!gpu->context) ask_for_context(gpu, pad);
    GstObject *context = context_of(gpu, gpu->number);
    if (!context) return NULL;
    GstBufferPool *pool = cuda.new_pool(context);
    GstStructure *config = gst_buffer_pool_get_config(pool);
    gst_object_unref(context);
    gst_buffer_pool_config_add_option(config, GST_BUFFER_POOL_OPTION_VIDEO_META);
    gst_buffer_pool_config_set_params(config, caps, (guint)GST_VIDEO_INFO_SIZE(info), 0, 0);
    if (gst_buffer_pool_set_config(pool, config) && gst_buffer_pool_set_active(pool, TRUE))
        return pool;
    gst_object_unref(pool);
    return NULL;
}
