"""gRPC over sockets of this node, as far as kubelet and a node agent speak it.

    huffman, hpack    headers on the wire
    http2             one end of a connection: frames, windows, what is heard and sent
    server            answers calls
    client            makes one
    status            how calls end

It has what one message there, and one or a stream of them back, need: no TLS, no compression, no
stream to a server. grpcio has all of that, and the library h2 has frames and headers: what each of
them costs instead is in docs/agent-cost.md.
"""
