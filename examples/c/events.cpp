// Reads frames in an event loop of epoll, until Ctrl-C or the end of the stream. It ends in order.
//
//     c++ -std=c++17 events.cpp -o events $(python -m gpuring.config --cflags --libs)
//     ./events cam0
#include <csignal>
#include <exception>
#include <iostream>

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <gpuring.hpp>

static void watch(int epoll, int fd) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(int argc, char **argv) try {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, nullptr); // they come by a descriptor instead
    const int epoll = epoll_create1(0), stop = signalfd(-1, &signals, 0);

    const gpuring::Ring ring(argc > 1 ? argv[1] : "cam0", gpuring::seconds(10));
    gpuring::Consumer frames(ring);
    const int ready = frames.fd(); // the library's: do not read or close it
    watch(epoll, stop);
    watch(epoll, ready);
    for (;;) {
        epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) < 1) continue;
        if (event.data.fd == stop) break;
        // The descriptor stays readable until a call finds nothing.
        while (auto frame = frames.acquire(gpuring::milliseconds(0)))
            std::cout << frame->seq() << std::endl;
    }
    close(stop);
    close(epoll);
} catch (const gpuring::Error &error) {
    if (error.status() == GPURING_END_OF_STREAM) return 0;
    std::cerr << error.what() << '\n';
    return 1;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
