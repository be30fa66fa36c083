/* A libnvcuvid.so.1 that decodes nothing: GStreamer's plugin nvcodec has cudaupload and cudadownload only
 * where it finds one. */
#define ABSENT(name)                                                                               \
    int name(void);                                                                                \
    int name(void) { return 801; } /* CUDA_ERROR_NOT_SUPPORTED */
ABSENT(cuvidCreateDecoder)
ABSENT(cuvidCreateVideoParser)
ABSENT(cuvidCtxLock)
ABSENT(cuvidCtxLockCreate)
ABSENT(cuvidCtxLockDestroy)
ABSENT(cuvidCtxUnlock)
ABSENT(cuvidDecodePicture)
ABSENT(cuvidDestroyDecoder)
ABSENT(cuvidDestroyVideoParser)
ABSENT(cuvidGetDecoderCaps)
ABSENT(cuvidMapVideoFrame64)
ABSENT(cuvidParseVideoData)
ABSENT(cuvidUnmapVideoFrame64)
